package engineconfig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Config holds the storage settings of an engine's own configuration.
type Config struct {
	Engine     string
	Mount      string   // the 3FS mount it names, cleaned; "" when the engine derives it from the base paths
	BasePaths  []string // directories it stores in; writable, and on the mount if Need.Rings3FS
	MakesPaths bool     // the engine creates missing base paths; otherwise they must exist
	TP         int      // tensor-parallel ranks, 0 if the file does not say
	GDSAsked   bool     // LMCache must use cuFile or hipFile, even where it would not by itself
	// GPUMemoryUtilization is the share of each GPU's memory that vLLM takes, 0 if the file
	// does not say.
	GPUMemoryUtilization float64
	Need                 Need      // what the engine needs from the host, with the sizes in the file
	Problems             []Problem // the worst first, then by key
}

// Read parses and checks an engine's own configuration, which is:
//
//	lmcache      YAML of LMCACHE_CONFIG_FILE; a script that sets LMCACHE_* variables, or nothing where env has
//	             them; or the JSON of --l2-adapter, or a command line with that flag
//	lmcache-gds  the same, without --l2-adapter
//	vllm         JSON of --kv-transfer-config; or a command line or script with that flag
//	sglang       JSON of SGLANG_HICACHE_HF3FS_CONFIG_PATH
//	ucm          YAML of UCM_CONFIG_FILE
//	rtp-llm      environment file, a KEY=VALUE per line, RECO_MODEL_SDK_CONFIG among them; or a command line
//	mooncake     environment file
//	nixl         JSON object of the plugin's parameters, or a KEY=VALUE per line
//
// content is nil if there is no file, but the environment has all. fileName is for messages. Read uses only Model, TP, BlockTokens and ExtraPools of given;
// they override the file, which determines all other sizes. env looks up a variable in the
// engine's environment; nil means an empty one.
//
// Read returns an error if the text cannot be parsed at all. Everything else is a
// Problem. Read does not check PYTHONHASHSEED, which no file contains; Need.HashSeed
// reports whether it matters.
func Read(engine, fileName string, content []byte, given Params, env func(string) (string, bool)) (*Config, error) {
	if err := known(engine); err != nil {
		return nil, err
	}
	given = Params{Model: given.Model, TP: given.TP, BlockTokens: given.BlockTokens, ExtraPools: given.ExtraPools}
	if err := given.check(); err != nil {
		return nil, err
	}
	if env == nil {
		env = func(string) (string, bool) { return "", false }
	}
	out := &Config{Engine: engine}
	err := checkText(content)
	if err == nil && content != nil && isEmpty(content) {
		err = errors.New("is empty: it sets nothing")
	}
	if err == nil {
		err = reader(engine)(out, content, given, env)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fileName, err)
	}
	slices.SortStableFunc(out.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Key, b.Key))
	})
	return out, nil
}

// isEmpty reports whether a text has nothing but comments, as YAML and shells have them.
func isEmpty(content []byte) bool {
	for line := range bytes.Lines(content) {
		if text := bytes.TrimSpace(line); len(text) > 0 && text[0] != '#' && !bytes.Equal(text, []byte("---")) {
			return false
		}
	}
	return true
}

type readFunc func(out *Config, content []byte, given Params, env func(string) (string, bool)) error

// reader returns the function that reads an engine's configuration.
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
