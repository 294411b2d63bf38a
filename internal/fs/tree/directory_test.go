package tree

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// The directories by which ring traffic is counted name engines and their models, not blocks:
// each case is a file of an engine's, by the layouts in shared/spec/clients.md.
func TestCountedDirectory(t *testing.T) {
	for path, want := range map[string]string{
		"file":                                 "/",
		"vllm/hf3fs_vllm_data_file_0":          "/vllm",
		"vllm/llama/hf3fs_vllm_data_file_0":    "/vllm/llama",
		"hicache/deepseek/kv.0.bin":            "/hicache/deepseek",
		"lmcache/model@1@0@1f@half.data":       "/lmcache",
		"gds/12/34/name.kvcache.safetensors":   "/gds",
		"gds/-1/23/name.kvcache.safetensors":   "/gds",
		"ab/abcdef0123456789abcdef0123456789":  "/",
		".temp/abcdef0123456789abcdef01234567": "/",
		"ucm/0ff/abcdef0123456789abcdef012345": "/ucm",
		"rtp_llm/shop/v2/1/no_lora/8/1_2":      "/rtp_llm/shop",
		"kv_manager/instance/tp0/1f":           "/kv_manager/instance",
		"mooncake/dfs_shard_00.data":           "/mooncake",
		"decade/a/b":                           "/decade", // longer than what spreads blocks
		"a\xff/b\n/c":                          "/a?/b\n",
	} {
		got := countedDirectory(path)
		if got != want || !utf8.ValidString(got) || strings.Count(got, "/") > countedDepth {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

// A file counts in the directory in which it came into use, until it is no longer in use.
func TestDirectoryOfFile(t *testing.T) {
	tr, _ := newTree(t, Options{})
	parent := uint64(RootID)
	for _, name := range []string{"vllm", "llama", "deeper"} {
		parent = must(tr.Mkdir(parent, name, 0o755, root, 0)).ID
	}
	e, h := create(t, tr, parent, "f", root, 0o644)
	ino := e.Attr.Ino
	directory := func(want string) {
		t.Helper()
		f, err := tr.Acquire(ino, root, false)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Release()
		if got := f.Directory(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	directory("/vllm/llama")
	if err := tr.Rename(parent, "f", RootID, "g", 0, root); err != nil {
		t.Fatal(err)
	}
	directory("/vllm/llama") // it is still open
	h.Close()
	directory("/")
}
