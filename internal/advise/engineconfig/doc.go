// Package engineconfig knows what each inference engine wants: of a host (Need), in
// its configuration (Read finds what is wrong, Write makes one that works), and
// what upstream reads and ignores. The facts are in docs/spec/clients.md.
//
// It is pure knowledge: text and numbers in, values out. Whether a path exists
// and a port answers is for its callers to find out.
package engineconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/spelling"
)

// The engines and connectors that are known.
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

// known refuses names that Names does not list.
func known(engine string) error {
	if slices.Contains(Names(), engine) {
		return nil
	}
	hint := ""
	if near := spelling.Nearest(engine, Names(), 1); len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %s?", near[0])
	}
	return fmt.Errorf("no engine %.40q%s (known: %s)", engine, hint, strings.Join(Names(), ", "))
}
