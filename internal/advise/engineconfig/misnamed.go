package engineconfig

import (
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/spelling"
)

// family is a prefix of variables that one program reads, and their names.
type family struct {
	prefix, reader string
	names          []string
}

// families returns the variables that decide about an engine's storage.
func families(engine string) []family {
	// Of 3FS's client library, and of ours in its place.
	all := []family{{"HF3FS_USRBIO_", "the 3FS library", []string{
		"HF3FS_USRBIO_LIB_LOG", "HF3FS_USRBIO_DONT_CHECKFS_FOR_MP", "HF3FS_USRBIO_WAIT_JITTER_MS",
		"HF3FS_USRBIO_ANSWER_MS", "HF3FS_USRBIO_SHM_MODE", "HF3FS_USRBIO_WAIT_FOREVER",
	}}}
	switch engine {
	case LMCache, LMCacheGDS:
		all = append(all, family{lmcachePrefix, "LMCache", lmcacheNames()})
	case SGLang:
		all = append(all, family{"SGLANG_HICACHE_HF3FS_", "SGLang", []string{"SGLANG_HICACHE_HF3FS_CONFIG_PATH"}})
	case UCM:
		all = append(all, family{"UC_", "UCM", []string{"UC_LOGGER_LEVEL"}})
	case RTPLLM:
		names := rtpNames()
		for _, prefix := range []string{"THREEFS_", oldKVCM, newKVCM} {
			all = append(all, family{prefix, "RTP-LLM", names})
		}
	case Mooncake:
		all = append(all, family{"MOONCAKE_DFS_", "Mooncake", mooncakeNames()}, family{"MOONCAKE_OFFLOAD_", "Mooncake", mooncakeNames()})
	}
	return all
}

// lmcacheEncoder begins the variables of LMCache's cache of encoders, which has keys of its own.
const lmcacheEncoder = "LMCACHE_EC_"

// Misnamed reports those of an environment's variables that have the prefix of an engine's
// storage but are not known to be read. It is a warning where a name differs from a known one
// in a letter or two, else a note: an engine's newer version may read it.
func Misnamed(engine string, names []string) (problems []Problem) {
	all := families(engine)
	for _, name := range slices.Sorted(slices.Values(names)) {
		for _, f := range all {
			if !strings.HasPrefix(name, f.prefix) || slices.Contains(f.names, name) || strings.HasPrefix(name, lmcacheEncoder) {
				continue
			}
			p := Problem{Note, clip(name), "is not a variable that " + f.reader + " is known to read", ""}
			if near := spelling.Nearest(name, f.names, 1); len(near) > 0 {
				p.Fix = "if you mean it, write " + near[0]
			}
			if meant := spelling.Misspelt(name, f.names); len(meant) > 0 {
				p.Severity, p.What, p.Fix = Warning, "is not a variable that "+f.reader+" reads, so it does nothing", "write "+meant[0]
			}
			if len(problems) == maxUnknown {
				return append(problems, Problem{Note, "", "more variables are not known", ""})
			}
			problems = append(problems, p)
			break
		}
	}
	return problems
}
