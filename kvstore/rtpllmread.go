package kvstore

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/rtpkeys"
)

// ReadRTPLLM makes options of the environment variables with which an RTP-LLM of August 2025
// to April 2026 is started. A variable of its 3FS tier that is unknown or out of range is an
// error; variables that have no effect here are in notes, a sentence for each. Other
// variables are ignored, TP_SIZE among them: ranks and tokens are those of the namespace.
func ReadRTPLLM(env map[string]string) (o RtpLlmOptions, notes []string, err error) {
	o = RtpLlmOptions{Biz: env["BIZ_NAME"], Checkpoint: env["CHECKPOINT_PATH"], Root: rtpkeys.Join(rtpkeys.Mount, cmp.Or(env["THREEFS_ROOT_DIR"], rtpLlmRoot))}
	switch {
	case o.Biz == "":
		return RtpLlmOptions{}, nil, errors.New("kvstore: BIZ_NAME is missing, which is part of every file's path; give RTP-LLM's")
	case o.Checkpoint == "":
		return RtpLlmOptions{}, nil, errors.New("kvstore: CHECKPOINT_PATH is missing, which is part of every file's path; give RTP-LLM's")
	}
	known := rtpkeys.Direct()
	for _, name := range slices.Sorted(maps.Keys(env)) {
		switch {
		case slices.Contains(known, name):
		case strings.HasPrefix(name, "THREEFS_") && name != "THREEFS_ROOT_DIR":
			return RtpLlmOptions{}, nil, fmt.Errorf("kvstore: RTP-LLM has no variable %.60s%s", name, didYouMean(name, known))
		default:
			continue
		}
		n, refused := rtpkeys.Number(name, env[name])
		if refused != nil {
			return RtpLlmOptions{}, nil, fmt.Errorf("kvstore: %s %w", name, refused)
		}
		switch {
		case name == "MAX_BLOCK_SIZE_PER_ITEM":
			o.ItemBlocks = int(n)
		case strings.HasSuffix(name, "_IOV_SIZE"):
			notes = append(notes, name+" has no effect here: "+noBuffers)
		default:
			notes = append(notes, name+" has no effect here: "+noTimeouts)
		}
	}
	return o, notes, nil
}

const (
	noTimeouts = "Config.Timeout bounds every wait"
	noBuffers  = "memory that is registered is used in place, and BufferBytes is for the rest"
)

// ReadKVCM makes options of the JSON that configures KVCM's SDK: the list of its backends, as
// in RTP-LLM's RECO_MODEL_SDK_CONFIG, the SDK's configuration with sdk_backend_configs in it,
// or a client's with sdk_config and instance_id. A key that is unknown or out of range is
// an error, and keys that have no effect here are in notes. The options still need what the
// JSON does not have: Spec, and Instance and FileBlocks unless they are given.
//
// The SDK skips a backend of type 3fs, as RTP-LLM writes it, and uses its defaults instead; so
// does ReadKVCM.
func ReadKVCM(src []byte) (o KvcmOptions, notes []string, err error) {
	sdk, err := rtpkeys.ReadSDK(src)
	if err != nil {
		return KvcmOptions{}, nil, fmt.Errorf("kvstore: KVCM's configuration: %w", err)
	}
	o = KvcmOptions{Root: sdk.Root, Instance: sdk.Instance, EngineFileOptions: EngineFileOptions{Transfers: sdk.Threads, WaitingTransfers: sdk.Queue}}
	for _, key := range sdk.Unused {
		notes = append(notes, key+" has no effect here: "+unusedOfKVCM(key))
	}
	return o, append(notes, sdk.Skipped...), nil
}

// unusedOfKVCM says why a key of KVCM's has no effect.
func unusedOfKVCM(key string) string {
	switch {
	case strings.HasSuffix(key, "timeout_config"):
		return noTimeouts
	case strings.HasPrefix(key, "sdk_log_"):
		return "Config.Logger receives the log"
	case strings.HasPrefix(key, "spec_byte_"):
		return "Config.Layout is the size of blocks"
	}
	return noBuffers
}
