package engineconfig

import (
	"cmp"
	"fmt"
	"slices"
)

// Config is what an engine's own configuration says about storage.
type Config struct {
	Engine     string
	Mount      string    // the 3FS mount it names, cleaned; "" when the engine derives it from the base paths
	BasePaths  []string  // directories it stores in, on the mount if Need.Rings3FS; they must be writable
	MakesPaths bool      // the engine makes missing base paths; else they must exist
	TP         int       // tensor-parallel ranks, 0 when the file does not say
	Need       Need      // what it asks of the host, with the file's own sizes
	Problems   []Problem // the worst first, then by key
}

// Read parses and checks an engine's own configuration. Which file that is:
//
//	lmcache      YAML of LMCACHE_CONFIG_FILE; or the JSON of --l2-adapter, or a command line that has it
//	lmcache-gds  YAML of LMCACHE_CONFIG_FILE
//	vllm         JSON of --kv-transfer-config; or a command line or script that has it
//	sglang       JSON of SGLANG_HICACHE_HF3FS_CONFIG_PATH
//	ucm          YAML of UCM_CONFIG_FILE
//	rtp-llm      environment file, KEY=VALUE a line, RECO_MODEL_SDK_CONFIG among them
//	mooncake     environment file
//	nixl         JSON object of the plugin's parameters, or KEY=VALUE a line
//
// fileName is for messages. Of asked, only Model, TP and BlockTokens count: what
// the caller knows of them goes before the file's; all other sizes are the file's.
// env looks up what the engine would find in its environment; nil means an empty
// one. An error means that the text cannot be read as a whole; everything else is a
// Problem. Read does not judge PYTHONHASHSEED, which no file holds: Need.HashSeed
// says that it matters.
func Read(engine, fileName string, content []byte, asked Params, env func(string) (string, bool)) (*Config, error) {
	if err := known(engine); err != nil {
		return nil, err
	}
	asked = Params{Model: asked.Model, TP: asked.TP, BlockTokens: asked.BlockTokens}
	if err := asked.check(); err != nil {
		return nil, err
	}
	if env == nil {
		env = func(string) (string, bool) { return "", false }
	}
	out := &Config{Engine: engine}
	err := checkText(content)
	if err == nil {
		err = reader(engine)(out, content, asked, env)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fileName, err)
	}
	slices.SortStableFunc(out.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Key, b.Key))
	})
	return out, nil
}

type readFunc func(out *Config, content []byte, asked Params, env func(string) (string, bool)) error

func reader(engine string) readFunc {
	switch engine {
	case LMCache:
		return readLMCache
	case LMCacheGDS:
		return readGDS
	case VLLM:
		return readVLLM
	case SGLang:
		return readSGLang
	case UCM:
		return readUCM
	case RTPLLM:
		return readRTPLLM
	case Mooncake:
		return readMooncake
	default:
		return readNIXL
	}
}
