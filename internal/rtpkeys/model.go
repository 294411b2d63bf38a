package rtpkeys

import (
	"fmt"

	"github.com/kv3fs/kv3fs/internal/pyyaml"
)

// ModelSDKConfig is the variable with the backends that RTP-LLM parses and passes on to the SDK.
const ModelSDKConfig = "RECO_MODEL_SDK_CONFIG"

// ReadModelSDKConfig returns the backends of that variable, and what is wrong: RTP-LLM
// does not start then. RTP-LLM and its SDK have different names for 3FS.
func ReadModelSDKConfig(text string) (backends []map[string]any, all []Refused) {
	refuse := func(name, what, fix string) {
		all = append(all, Refused{ModelSDKConfig + name, pyyaml.Refusal{What: what, Fix: fix}})
	}
	decoded, err := decode([]byte(text))
	list, ok := decoded.([]any)
	switch {
	case err != nil:
		refuse("", "is not a JSON list: "+err.Error(), `write [{"type":"3fs","sdk_log_level":"INFO"}]`)
	case !ok:
		refuse("", "is not a JSON list", `write [{"type":"3fs","sdk_log_level":"INFO"}]`)
	}
	for i, entry := range list {
		where := fmt.Sprintf("[%d]", i)
		backend, ok := entry.(map[string]any)
		if !ok {
			refuse(where, "is "+pyyaml.Describe(entry)+", not an object", `write {"type":"3fs"}`)
		}
		backends = append(backends, backend)
		if !ok {
			continue
		}
		kind, ok := backend["type"].(string)
		switch {
		case kind == "hf3fs":
			refuse(where+".type", `"hf3fs" is the SDK's name; RTP-LLM, which parses it first, rejects it`, `write "3fs"; it starts with the SDK's defaults`)
		case !ok || kind == "":
			refuse(where+".type", "is missing, or not text", `write "3fs"`)
		}
		if kind != "3fs" && kind != "hf3fs" {
			continue // another kind of storage, which is not judged here
		}
		for _, key := range []string{"sdk_log_file_path", "sdk_log_level"} {
			if value, given := backend[key]; given {
				if _, ok := value.(string); !ok {
					refuse(where+"."+key, "is "+pyyaml.Describe(value)+", not text", "write it in quotes")
				}
			}
		}
	}
	return backends, all
}
