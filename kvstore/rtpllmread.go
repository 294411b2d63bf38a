package kvstore

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// engineMount is where RTP-LLM looks for the 3FS.
const engineMount = "/3fs/stage/3fs"

// ReadRTPLLM makes options of the environment variables with which an RTP-LLM of August 2025
// to April 2026 is started. A variable of its 3FS tier that is unknown or out of range is an
// error; variables that have no effect here are in notes, a sentence for each. Other
// variables are ignored, TP_SIZE among them: ranks and tokens are those of the namespace.
func ReadRTPLLM(env map[string]string) (o RtpLlmOptions, notes []string, err error) {
	o = RtpLlmOptions{Biz: env["BIZ_NAME"], Checkpoint: env["CHECKPOINT_PATH"], Root: engineRoot(cmp.Or(env["THREEFS_ROOT_DIR"], "rtp_llm"))}
	switch {
	case o.Biz == "":
		return RtpLlmOptions{}, nil, errors.New("kvstore: BIZ_NAME is missing, which is part of every file's path; give RTP-LLM's")
	case o.Checkpoint == "":
		return RtpLlmOptions{}, nil, errors.New("kvstore: CHECKPOINT_PATH is missing, which is part of every file's path; give RTP-LLM's")
	}
	numbers := map[string]struct {
		most  int64
		to    *int
		cause string // why it has no effect
	}{
		"MAX_BLOCK_SIZE_PER_ITEM":          {mostFileBlocks, &o.ItemBlocks, ""},
		"THREEFS_MATCH_TIMEOUT_MS":         {math.MaxInt32, nil, noTimeouts},
		"THREEFS_RPC_GET_CACHE_TIMEOUT_MS": {math.MaxInt32, nil, noTimeouts},
		"THREEFS_RPC_PUT_CACHE_TIMEOUT_MS": {math.MaxInt32, nil, noTimeouts},
		"THREEFS_READ_TIMEOUT_MS":          {math.MaxInt32, nil, noTimeouts},
		"THREEFS_WRITE_TIMEOUT_MS":         {math.MaxInt32, nil, noTimeouts},
		"THREEFS_READ_IOV_SIZE":            {1 << 50, nil, noBuffers},
		"THREEFS_WRITE_IOV_SIZE":           {1 << 50, nil, noBuffers},
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		number, ok := numbers[name]
		switch {
		case !ok && strings.HasPrefix(name, "THREEFS_") && name != "THREEFS_ROOT_DIR":
			return RtpLlmOptions{}, nil, fmt.Errorf("kvstore: RTP-LLM has no variable %.60s%s", name, didYouMean(name, slices.Collect(maps.Keys(numbers))))
		case !ok:
			continue
		}
		n, err := strconv.ParseInt(env[name], 10, 64)
		if err != nil || n < 1 || n > number.most {
			return RtpLlmOptions{}, nil, fmt.Errorf("kvstore: %s is %.40q; write a whole number from 1 to %d", name, env[name], number.most)
		}
		if number.to != nil {
			*number.to = int(n)
		} else {
			notes = append(notes, name+" has no effect here: "+number.cause)
		}
	}
	return o, notes, nil
}

const (
	noTimeouts = "Config.Timeout bounds every wait"
	noBuffers  = "memory that is registered is used in place, and BufferBytes is for the rest"
)

// engineRoot joins a root directory to the mount as the engines do: an absolute one replaces
// it.
func engineRoot(dir string) string {
	if path.IsAbs(dir) {
		return path.Clean(dir)
	}
	return path.Join(engineMount, dir)
}

// ReadKVCM makes options of the JSON that configures KVCM's SDK: the list of its backends, as
// in RTP-LLM's RECO_MODEL_SDK_CONFIG, the SDK's configuration with sdk_backend_configs in it,
// or a client's with sdk_config and instance_id. A key that is unknown or out of range is
// an error, and keys that have no effect here are in notes. The options still need what the
// JSON does not have: Spec, and Instance and FileBlocks unless they are given.
//
// The SDK skips a backend of type 3fs, as RTP-LLM writes it, and uses its defaults instead; so
// does ReadKVCM.
func ReadKVCM(src []byte) (o KvcmOptions, notes []string, err error) {
	r := kvcmReader{o: KvcmOptions{Root: kvcmRoot}}
	if err := r.read(src); err != nil {
		return KvcmOptions{}, nil, fmt.Errorf("kvstore: KVCM's configuration: %w", err)
	}
	return r.o, r.notes, nil
}

type kvcmReader struct {
	o     KvcmOptions
	notes []string
}

func (r *kvcmReader) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

func (r *kvcmReader) read(src []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(src))
	decoder.UseNumber()
	var top any
	if err := decoder.Decode(&top); err != nil {
		return fmt.Errorf("it is no JSON: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return errors.New("something follows the JSON; remove it")
	}
	switch top := top.(type) {
	case []any:
		return r.backends(top)
	case map[string]any:
		if sdk, ok := top["sdk_config"]; ok {
			return r.client(top, sdk)
		}
		return r.sdk(top, "")
	}
	return errors.New("it is neither an object nor a list of backends")
}

// client reads a client's configuration. Most of it is for the manager.
func (r *kvcmReader) client(top map[string]any, sdk any) error {
	if id, ok := top["instance_id"]; ok {
		text, isText := id.(string)
		if !isText || text == "" {
			return fmt.Errorf("instance_id is %.40v; write a text", id)
		}
		r.o.Instance = text
	}
	object, ok := sdk.(map[string]any)
	if !ok {
		return errors.New("sdk_config is no object")
	}
	return r.sdk(object, "sdk_config.")
}

func (r *kvcmReader) sdk(top map[string]any, where string) error {
	for _, key := range slices.Sorted(maps.Keys(top)) {
		var err error
		switch value := top[key]; key {
		case "thread_num":
			err = wholeNumber(value, 1, mostThreads, &r.o.Transfers)
		case "queue_size":
			err = wholeNumber(value, 1, mostOf, &r.o.WaitingTransfers)
		case "timeout_config":
			r.note("%s%s has no effect here: %s", where, key, noTimeouts)
		case "sdk_backend_configs":
			list, ok := value.([]any)
			if !ok {
				return fmt.Errorf("%s%s is no list", where, key)
			}
			err = r.backends(list)
		default:
			return fmt.Errorf("%s%.60s is unknown%s", where, key, didYouMean(key, []string{"thread_num", "queue_size", "timeout_config", "sdk_backend_configs"}))
		}
		if err != nil {
			return fmt.Errorf("%s%s%w", where, key, err)
		}
	}
	return nil
}

// backends reads the backends. The last one of a type counts, as in the SDK.
func (r *kvcmReader) backends(list []any) error {
	for i, entry := range list {
		backend, ok := entry.(map[string]any)
		if !ok {
			return fmt.Errorf("[%d] is no object", i)
		}
		switch kind, _ := backend["type"].(string); kind {
		case "hf3fs":
			if err := r.hf3fs(backend); err != nil {
				return fmt.Errorf("[%d].%w", i, err)
			}
		case "3fs":
			r.note("[%d] has the type 3fs, which the SDK skips: its defaults apply, %s", i, kvcmRoot)
		case "":
			return fmt.Errorf("[%d] has no type; write hf3fs", i)
		default:
			r.note("[%d] has no effect here: %.40s is another kind of storage", i, kind)
		}
	}
	return nil
}

// hf3fs reads the backend that moves data to a 3FS.
func (r *kvcmReader) hf3fs(backend map[string]any) error {
	mount, root := engineMount, "kv_manager"
	var size [2]int // of buffers and of their blocks
	for _, key := range slices.Sorted(maps.Keys(backend)) {
		value := backend[key]
		var err error
		switch key {
		case "type":
		case "mountpoint":
			err = nonEmpty(value, &mount)
		case "root_dir":
			err = nonEmpty(value, &root)
		case "read_iov_size", "write_iov_size":
			err = wholeNumber(value, 1, 1<<50, &size[0])
			r.note("%s has no effect here: %s", key, noBuffers)
		case "read_iov_block_size", "write_iov_block_size":
			err = wholeNumber(value, 0, 1<<50, &size[1])
			r.note("%s has no effect here: %s", key, noBuffers)
		case "sdk_log_file_path", "sdk_log_level":
			r.note("%s has no effect here: Config.Logger receives the log", key)
		case "spec_byte_sizes_per_block":
			r.note("%s has no effect here: Config.Layout is the size of blocks", key)
		default:
			return fmt.Errorf("%.60s is unknown%s", key, didYouMean(key, []string{
				"type", "mountpoint", "root_dir", "read_iov_size", "write_iov_size", "read_iov_block_size", "write_iov_block_size", "sdk_log_file_path", "sdk_log_level",
			}))
		}
		if err != nil {
			return fmt.Errorf("%s%w", key, err)
		}
	}
	if !path.IsAbs(mount) {
		return fmt.Errorf("mountpoint is %.60q; write an absolute path", mount)
	}
	if path.IsAbs(root) {
		r.o.Root = path.Clean(root)
	} else {
		r.o.Root = path.Join(mount, root)
	}
	return nil
}

func nonEmpty(value any, to *string) error {
	text, ok := value.(string)
	if !ok || text == "" {
		return fmt.Errorf(" is %.40v; write a path", value)
	}
	*to = text
	return nil
}

func wholeNumber(value any, least, most int64, to *int) error {
	number, ok := value.(json.Number)
	n, err := strconv.ParseInt(string(number), 10, 64)
	if !ok || err != nil || n < least || n > most {
		return fmt.Errorf(" is %.40v; write a whole number from %d to %d", value, least, most)
	}
	*to = int(n)
	return nil
}
