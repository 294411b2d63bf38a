package engineconfig

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestMisnamed(t *testing.T) {
	for _, c := range []struct {
		engine, name string
		severity     Severity
		fix          string
	}{
		{LMCache, "LMCACHE_CHUNKSIZE", Warning, "write LMCACHE_CHUNK_SIZE"},
		{LMCacheGDS, "LMCACHE_GDS_PATHS", Warning, "write LMCACHE_GDS_PATH"},
		{LMCache, "LMCACHE_REMOTE_STORAGE_PLUGIN", Warning, "write LMCACHE_REMOTE_STORAGE_PLUGINS"},
		{LMCache, "LMCACHE_MAX_CPU_SIZE", Note, "if you mean it, write LMCACHE_MAX_LOCAL_CPU_SIZE"},
		{LMCache, "LMCACHE_ZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ", Note, ""},
		{VLLM, "HF3FS_USRBIO_LIB_LOGS", Warning, "write HF3FS_USRBIO_LIB_LOG"},
		{SGLang, "SGLANG_HICACHE_HF3FS_CONFIG", Note, "if you mean it, write SGLANG_HICACHE_HF3FS_CONFIG_PATH"},
		{UCM, "UC_LOGER_LEVEL", Warning, "write UC_LOGGER_LEVEL"},
		{Mooncake, "MOONCAKE_DFS_ROOTDIR", Warning, "write MOONCAKE_DFS_ROOT_DIR"},
		{Mooncake, "MOONCAKE_OFFLOAD_ENABLE", Warning, "write MOONCAKE_OFFLOAD_ENABLED"},
		{RTPLLM, "THREEFS_READ_IOVSIZE", Warning, "write THREEFS_READ_IOV_SIZE"},
		{RTPLLM, "RECO_SERVER_ADRESS", Warning, "write RECO_SERVER_ADDRESS"},
		{RTPLLM, "KVCM_SERVER_ADRESS", Warning, "write KVCM_SERVER_ADDRESS"},
	} {
		got := Misnamed(c.engine, []string{"PATH", c.name, "LMCACHE_CHUNK_SIZE", "VLLM_USE_V1", "LMCACHE_EC_ANYTHING"})
		if len(got) != 1 || got[0].Severity != c.severity || got[0].Key != c.name || got[0].Fix != c.fix {
			t.Errorf("%s %s: %+v", c.engine, c.name, got)
		}
	}
	var many []string
	for i := range 100 {
		many = append(many, "LMCACHE_"+strings.Repeat("X", i+1))
	}
	if got := Misnamed(LMCache, many); len(got) != maxUnknown+1 {
		t.Errorf("%d problems", len(got))
	}
}

// What the readers look up in an environment is known to Misnamed.
func TestMisnamedKnowsWhatIsRead(t *testing.T) {
	for engine, texts := range map[string][]string{
		LMCache:    {"chunk_size: 1"},
		LMCacheGDS: {"gds_path: /x"},
		RTPLLM:     {"REUSE_CACHE=1\nENABLE_3FS=1", "REUSE_CACHE=1\nENABLE_REMOTE_CACHE=1\nENABLE_VIPSERVER=1"},
		Mooncake:   {mooncakeGood, mooncakeBucket, mooncakeClient},
	} {
		asked := map[string]bool{}
		for _, text := range texts {
			if _, err := Read(engine, "file", []byte(text), Params{}, func(name string) (string, bool) { asked[name] = true; return "", false }); err != nil {
				t.Fatal(err)
			}
		}
		if len(asked) < 5 {
			t.Errorf("%s: only %v are looked up", engine, asked)
		}
		for _, p := range Misnamed(engine, slices.Collect(maps.Keys(asked))) {
			t.Errorf("%s: %+v", engine, p)
		}
	}
}

// Variables that a script sets are checked like those of the environment.
func TestMisnamedInScripts(t *testing.T) {
	for _, engine := range []string{LMCache, LMCacheGDS, VLLM} {
		c, err := Read(engine, "start.sh", []byte("export LMCACHE_CHUNKSIZE=1 HF3FS_USRBIO_LIB_LOGS=INFO\nvllm serve m --kv-transfer-config '"+vllmGood+"'"), Params{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		found := func(key string) bool {
			return slices.ContainsFunc(c.Problems, func(p Problem) bool { return p.Key == key && p.Severity == Warning })
		}
		if found("LMCACHE_CHUNKSIZE") != (engine != VLLM) || !found("HF3FS_USRBIO_LIB_LOGS") {
			t.Errorf("%s: %+v", engine, c.Problems)
		}
	}
}
