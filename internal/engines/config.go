package engines

import "fmt"

// Config is what an engine's own configuration says about storage.
type Config struct {
	Engine    string
	Mount     string    // the 3FS mount it names; "" when the engine derives it from the base paths
	BasePaths []string  // directories that must exist, on the mount if Need.Rings3FS, and be writable
	TP        int       // tensor-parallel ranks on this host, 0 when the file does not say
	Need      Need      // what it asks of the host, with the file's own sizes
	Problems  []Problem // in the order of the file's keys
}

// maxConfigBytes bounds what is parsed; no engine's configuration is near it.
const maxConfigBytes = 1 << 20

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
// fileName is for messages. env looks up what the engine would find in its
// environment; nil means an empty one. An error means that the text cannot be
// read as a whole; everything else is a Problem.
func Read(engine, fileName string, content []byte, env func(string) (string, bool)) (*Config, error) {
	if err := known(engine); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%s: reading %s configurations comes with the next commit", fileName, engine)
}
