package classify

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// run gives lines of JSON to a replay of an engine.
func run(t *testing.T, script string, lines []map[string]any, args ...string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	var in bytes.Buffer
	for _, line := range lines {
		if err := json.NewEncoder(&in).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), python, append([]string{script}, args...)...)
	cmd.Stdin = &in
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// found classifies what a replay has left.
func found(t *testing.T, root string) map[string]File {
	t.Helper()
	all := map[string]File{}
	err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		all[rel] = Classify(rel, Context{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The files of LMCache's GDS backend, whose names Python makes, are known, two to an entry.
func TestReplayOfGDSBackend(t *testing.T) {
	root := t.TempDir()
	var lines []map[string]any
	const first, second = "6b9d7e2c6b9d7e2c6b9d7e2c6b9d7e2c6b9d7e2c6b9d7e2c6b9d7e2c6b9d7e2c", "5c27270a0d005c275c270a0d2f005c275c270a0d2f005c275c270a0d2f005c27"
	for _, hash := range []any{5, -1, 42, -1234, 1 << 40, uint64(1 << 63), first, second} {
		kind := "hash"
		if _, ok := hash.(string); ok {
			kind = "digest"
		}
		for _, model := range []string{"meta-llama/Llama-3.1-8B", "a b~ü"} {
			lines = append(lines, map[string]any{"do": "write", "root": root, "model": model, "world": 2, "worker": 1, kind: hash, "dtype": "bfloat16",
				"shape": []int{2, 1, 8, 8}, "fmt": 1, "payload": "AQIDBA=="})
		}
	}
	run(t, "../gds/testdata/backend.py", lines)
	entries := map[string]int{}
	for path, f := range found(t, root) {
		if f.Owner != GDS || f.Temp || f.WorldSize != 2 || f.Rank != 1 || f.DType != "bfloat16" || f.Root != "" {
			t.Errorf("%s is %+v", path, f)
		}
		entries[f.Entry]++
	}
	if len(entries) != len(lines) {
		t.Errorf("there are %d entries, not %d", len(entries), len(lines))
	}
	for entry, n := range entries {
		if n != 2 {
			t.Errorf("%s has %d files", entry, n)
		}
	}
}

// So are those of its connectors and of its multi-process server.
func TestReplayOfLMCacheConnectors(t *testing.T) {
	root := t.TempDir()
	var lines []map[string]any
	add := func(key map[string]any) {
		lines = append(lines, map[string]any{"op": "put", "key": key, "seed": 1, "size": 64})
	}
	for _, hash := range []int64{5, -1, 1 << 62, -1 << 62} {
		key := map[string]any{"model": "meta-llama/Llama-3.1-8B", "world_size": 4, "worker_id": 3, "chunk_hash": hash, "dtype": "half"}
		add(key)
		for name, value := range map[string]any{"layer": 7, "tags": [][2]string{{"user", "a/b"}}, "format": "vllm"} {
			with := map[string]any{name: value}
			for k, v := range key {
				with[k] = v
			}
			add(with)
		}
	}
	chunks := len(lines)
	for levels := range 3 {
		add(map[string]any{"model": "meta-llama/Llama-3.1-8B", "kv_rank": 0x04030403, "digest": digest[:60] + []string{"aaaa", "bbbb", "cccc"}[levels], "group": levels, "levels": levels, "salt": "s"})
	}
	run(t, "../../../kvstore/internal/lmcache/testdata/connector.py", lines, root)
	n := map[Owner]int{}
	for path, f := range found(t, root) {
		n[f.Owner]++
		if f.Temp || f.Model != "meta-llama/Llama-3.1-8B" || f.WorldSize != 4 || f.Rank != 3 || f.Root != "" || f.Entry != path {
			t.Errorf("%s is %+v", path, f)
		}
	}
	if n[LMCache] != chunks || n[LMCacheObject] != 3 || len(n) != 2 {
		t.Errorf("there are %v", n)
	}
}
