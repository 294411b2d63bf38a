// Package engineconfig reads and writes the configurations of inference engines that
// store KV cache. NeedOf returns what an engine needs from a host, Read finds problems in
// a configuration, and Write makes one that works. The facts about engines, such as which
// keys upstream ignores, come from docs/spec/clients.md.
//
// The package does no I/O. Its callers check whether a path exists or a port answers.
package engineconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/spelling"
)

// The known engines and connectors.
const (
	LMCache    = "lmcache"     // LMCache's 3FS connector (remote) and its multi-process L2 adapter
	LMCacheGDS = "lmcache-gds" // LMCache's GDS backend: cuFile, or mmap, on any file system
	VLLM       = "vllm"        // vLLM's HF3FSKVConnector
	SGLang     = "sglang"      // SGLang's HiCache with the hf3fs backend
	UCM        = "ucm"         // Unified Cache Manager: Cache|Ds3fs
	RTPLLM     = "rtp-llm"     // RTP-LLM through Tair KVCM's SDK, and its older direct 3FS tier
	Mooncake   = "mooncake"    // Mooncake Store's descriptor DFS
	NIXL       = "nixl"        // NIXL's HF3FS plugin
)

// Names lists the engines.
func Names() []string {
	return []string{LMCache, LMCacheGDS, VLLM, SGLang, UCM, RTPLLM, Mooncake, NIXL}
}

// known returns an error for names that Names does not list.
func known(engine string) error {
	if slices.Contains(Names(), engine) {
		return nil
	}
	hint := ""
	if near := spelling.Nearest(engine, Names(), 1); len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %s?", near[0])
	}
	return fmt.Errorf("unknown engine %.40q%s (known: %s)", engine, hint, strings.Join(Names(), ", "))
}
