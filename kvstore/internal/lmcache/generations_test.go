package lmcache_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	layout "github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// older returns the name of chunk as old LMCaches have it.
func older(format, dtype string) *layout.Name {
	n := chunk()
	n.OldFormat, n.DType = format, dtype
	return n
}

// raw is a command for connector.py.
type raw map[string]any

func (c connector) raw(commands ...raw) (answers []any) {
	c.Helper()
	for _, one := range commands {
		must(c, c.to.Encode(one))
		var answer any
		must(c, c.from.Decode(&answer))
		answers = append(answers, answer)
	}
	return answers
}

// digestOf returns the digest that fake has for a key.
func digestOf(key kv.Key) string {
	id, _ := fake{}.ID(key)
	return hex.EncodeToString(id.Bytes())
}

// objects are the Options of objects in base paths.
func objects(levels int, dirs ...string) lmcache.Options {
	return lmcache.Options{
		BasePaths: dirs, Layout: shape, Object: &layout.ObjectName{Model: "a/b", Rank: 0x02010201, Group: 1, Salt: "s"}, IDs: fake{}, SubdirLevels: levels,
	}
}

// Whatever hash_subdir_levels fs_native had when it wrote them, objects are found, listed once and
// deleted, and it finds what the store writes with its own.
func TestSubdirs(t *testing.T) {
	parent := t.TempDir()
	bases := []string{parent + "/a", parent + "/b"}
	theirs := newConnector(t, bases, "")
	command := func(op string, key kv.Key, seed, levels int) raw {
		c := raw{"op": op, "key": raw{"model": "a/b", "kv_rank": 0x02010201, "group": 1, "salt": "s", "digest": digestOf(key), "levels": levels}}
		if op == "put" || op == "get" {
			c["seed"], c["size"] = seed, shape.BlockBytes
		}
		return c
	}
	var all []kv.Key
	for i := range 9 {
		all = append(all, kv.Key{byte(i), byte(7 * i), 15: byte(i)})
	}
	for levels := range layout.MostSubdirs + 1 {
		t.Run(fmt.Sprint(levels), func(t *testing.T) {
			s := open(t, objects(levels, bases...))
			for i, key := range all {
				theirs.raw(command("put", key, i, i%3))
			}
			theirs.raw(command("put", all[0], 0, 1), command("put", all[0], 0, 2)) // by LMCaches with several settings
			before := files(t, parent)
			counted := map[kv.Key]int{}
			for key, err := range s.Keys(t.Context()) {
				must(t, err)
				counted[key]++
			}
			for i, key := range all {
				if counted[key] != 1 {
					t.Errorf("object %d is listed %d times", i, counted[key])
				}
				if got, err := loaded(t, s, key); err != nil || !has(t, s, key) || !bytes.Equal(got, seeded(i, shape.BlockBytes)) {
					t.Errorf("object %d, written with %d levels: %v", i, i%3, err)
				}
			}
			var bufs [][]byte
			for i := range all {
				bufs = append(bufs, seeded(i, shape.BlockBytes))
			}
			saveAll := func() {
				t.Helper()
				task, err := s.Save(t.Context(), shape.ByBlock(all, bufs))
				must(t, err)
				must(t, task.Wait(t.Context()))
			}
			saveAll()
			if after := files(t, parent); !slices.Equal(after, before) {
				t.Errorf("objects were written that are there: %v", after)
			}
			must(t, s.Delete(t.Context(), all))
			if left := files(t, parent); len(left) > 0 || len(counted) != len(all) {
				t.Errorf("left: %v", left)
			}

			saveAll()
			for i, key := range all {
				if got := theirs.raw(command("get", key, i, levels))[0]; got != true {
					t.Errorf("LMCache reads object %d: %v", i, got)
				}
			}
			if written := files(t, parent); len(written) != len(all) {
				t.Errorf("%d files", len(written))
			}
			for _, key := range all {
				theirs.raw(command("remove", key, 0, levels))
			}
		})
	}
}

// A directory in which old and new LMCaches have written is read whole.
func TestNamesOfSeveralGenerations(t *testing.T) {
	dir := t.TempDir()
	theirs := newConnector(t, []string{dir}, "")
	put := func(n int, change raw) {
		key := raw{"model": "meta-llama/Llama-3-8B", "world_size": 2, "worker_id": 1, "chunk_hash": json.Number(fmt.Sprint(n)), "dtype": "bfloat16"}
		maps.Copy(key, change)
		theirs.raw(raw{"op": "put", "key": key, "seed": n, "size": shape.BlockBytes})
	}
	put(1, nil)
	put(2, raw{"format": "vllm"})
	put(3, raw{"format": "vllm", "untyped": true})
	put(4, raw{"format": "vllm"})
	put(4, nil)
	put(5, raw{"format": "sglang"})
	put(6, raw{"format": "vllm", "dtype": "half"})
	o := lmcache.Options{BasePaths: []string{dir}, Layout: shape, Chunk: chunk(), AlsoChunks: []layout.Name{*older("vllm", "bfloat16"), *older("vllm", "")}}
	s := open(t, o)
	var listed []uint64
	for key, err := range s.Keys(t.Context()) {
		must(t, err)
		n, _ := key.Uint64()
		listed = append(listed, n)
		if got, err := loaded(t, s, key); err != nil || !bytes.Equal(got, seeded(int(n), shape.BlockBytes)) {
			t.Errorf("chunk %d: %v", n, err)
		}
	}
	if slices.Sort(listed); !slices.Equal(listed, []uint64{1, 2, 3, 4}) {
		t.Errorf("listed: %v", listed)
	}
	for _, n := range []uint64{5, 6} {
		if has(t, s, keys.Uint64Key(n)) {
			t.Errorf("chunk %d is of another format or type, and found", n)
		}
	}
	must(t, s.Delete(t.Context(), []kv.Key{keys.Uint64Key(2), keys.Uint64Key(4)}))
	if left := files(t, dir); len(left) != 4 {
		t.Errorf("left: %v", left)
	}

	// What a store of one generation has written is a store's of another, with its checksums.
	save(t, s, keys.Uint64Key(7))
	o.Chunk, o.AlsoChunks, o.Checksums = older("vllm", "bfloat16"), []layout.Name{*chunk()}, kv.ChecksumsRequire
	s = open(t, o)
	must(t, load(t, s, keys.Uint64Key(7)))
	save(t, s, keys.Uint64Key(8))
	must(t, load(t, s, keys.Uint64Key(8)))
	if _, err := os.Stat(filepath.Join(dir, older("vllm", "bfloat16").OldFormat+"@"+nameOf("8"))); err != nil {
		t.Error(err)
	}
}

func TestRefusedGenerations(t *testing.T) {
	for name, change := range map[string]func(*lmcache.Options){
		"more levels":             func(o *lmcache.Options) { o.SubdirLevels = 3 },
		"fewer levels":            func(o *lmcache.Options) { o.SubdirLevels = -1 },
		"levels without a group":  func(o *lmcache.Options) { o.SubdirLevels, o.Object.Group = 1, layout.NoGroup },
		"levels of chunks":        func(o *lmcache.Options) { o.SubdirLevels, o.Object, o.Chunk, o.IDs = 1, nil, chunk(), nil },
		"a format with an @":      func(o *lmcache.Options) { o.Object, o.Chunk = nil, older("a@b", "half") },
		"a format that is number": func(o *lmcache.Options) { o.Object, o.Chunk = nil, older("2", "half") },
		"a bad name to read": func(o *lmcache.Options) {
			o.Object, o.Chunk, o.AlsoChunks = nil, chunk(), []layout.Name{*older("vllm", "float16")}
		},
	} {
		o := objects(0, t.TempDir())
		change(&o)
		if s, err := lmcache.Open(o); err == nil {
			t.Errorf("%s: opened", name)
			s.Close()
		}
	}
}
