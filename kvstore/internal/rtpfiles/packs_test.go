package rtpfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/internal/layout/rtpllm"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// each runs a test for both stores over an empty root.
func each(t *testing.T, test func(t *testing.T, name, root string, path func(first, n int) string)) {
	for name, path := range paths {
		t.Run(name, func(t *testing.T) { test(t, name, t.TempDir(), path) })
	}
}

func TestPrompts(t *testing.T) {
	each(t, func(t *testing.T, name, root string, path func(first, n int) string) {
		s := openTest(t, name, Options{Root: root})
		put := func(first, n int) { write(t, filepath.Join(root, path(first, n)), content(testLayout, first, n)) }
		for first := 0; first < 32; first += 16 {
			put(first, 16)
		}
		put(32, 5)
		save(t, s, 37, 2) // files of the store's own go on with the prompt
		put(39, 2)
		count(t, s, 0, 50, 41)
		hits(t, s, 0, 41, true)
		hits(t, s, 41, 3, false)
		found := make([]bool, 3)
		if err := s.Lookup(t.Context(), []kv.Key{prompt(40, 1)[0], prompt(7, 1)[0], prompt(41, 1)[0]}, found); err != nil || !found[0] || !found[1] || found[2] {
			t.Errorf("looked up alone they are %v, %v", found, err)
		}
		// What is stored in a file with others is not written again.
		save(t, s, 0, 1)
		if _, err := os.Stat(filepath.Join(root, path(0, 1))); !os.IsNotExist(err) {
			t.Errorf("block 0 was saved although it is there: %v", err)
		}
		if got := s.Stats().UnverifiedShards; got != 39*4 {
			t.Errorf("%d shards were loaded without a checksum, want those of 39 blocks", got)
		}
	})
}

// A process that has not looked a prompt up does not find its blocks by their keys alone, and
// a prompt that ends within a file does not find the file, as in RTP-LLM.
func TestBlocksThatCannotBeFound(t *testing.T) {
	each(t, func(t *testing.T, name, root string, path func(first, n int) string) {
		write(t, filepath.Join(root, path(0, 16)), content(testLayout, 0, 16))
		s := openTest(t, name, Options{Root: root})
		hits(t, s, 0, 16, false)
		count(t, s, 0, 15, 0)
		count(t, s, 1, 15, 0)
		count(t, s, 0, 16, 16)
		count(t, s, 1, 15, 15) // it is remembered now
		count(t, s, 0, 7, 7)
	})
}

func TestIncompleteFiles(t *testing.T) {
	const block = 16384
	each(t, func(t *testing.T, name, root string, path func(first, n int) string) {
		s := openTest(t, name, Options{Root: root})
		raw := content(testLayout, 0, 4)
		whole := func(size int) int { // how many blocks such a file has
			if name == "Kvcm" {
				return min(size/block, 4)
			}
			return size / (4 * block) * 4
		}
		for _, size := range []int{0, 1, block - 1, block, 2*block + 1, 4*block - 1} {
			at := filepath.Join(root, path(0, 4))
			write(t, at, raw[:size])
			count(t, s, 0, 4, whole(size))
			if err := os.Truncate(at, 4*block); err != nil { // the end came before the rest
				t.Fatal(err)
			}
			if size%4096 == 0 { // else the hole begins within a block of the disk
				count(t, s, 0, 4, whole(size))
			}
			if n := whole(size); n > 0 {
				hits(t, s, 0, n, true)
			}
			write(t, at, append(raw, 0)) // longer than such a file can be
			count(t, s, 0, 4, 0)
			if err := os.Remove(at); err != nil {
				t.Fatal(err)
			}
		}
		// A file with one block, of the wrong size and with a hole.
		one := filepath.Join(root, path(9, 1))
		for _, size := range []int{0, block - 1, block + 1, 2 * block} {
			write(t, one, content(testLayout, 9, 2)[:size])
			count(t, s, 9, 1, 0)
			hits(t, s, 9, 1, false)
		}
		write(t, one, content(testLayout, 9, 1)[:4096])
		if err := os.Truncate(one, block); err != nil {
			t.Fatal(err)
		}
		count(t, s, 9, 1, 0)
		hits(t, s, 9, 1, false)
	})
}

// A file that grows after it was found is one that was not whole, and one that is cut
// short or removed is a miss, not a wrong byte.
func TestFilesThatChange(t *testing.T) {
	each(t, func(t *testing.T, name, root string, path func(first, n int) string) {
		s := openTest(t, name, Options{Root: root})
		at := filepath.Join(root, path(0, 4))
		write(t, at, content(testLayout, 0, 4))
		count(t, s, 0, 4, 4)
		if err := os.Truncate(at, 16384); err != nil {
			t.Fatal(err)
		}
		hits(t, s, 1, 3, false)
		count(t, s, 1, 3, 0)
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		count(t, s, 0, 4, 0)
		save(t, s, 0, 4)
		count(t, s, 0, 4, 4)
		hits(t, s, 0, 4, true)
	})
}

func TestForeignFiles(t *testing.T) {
	each(t, func(t *testing.T, name, root string, path func(first, n int) string) {
		s := openTest(t, name, Options{Root: root})
		dir := filepath.Dir(filepath.Join(root, path(0, 1)))
		for _, other := range []string{
			"1", "1_2", "-0_0", "01_01", "ABC", "0a", "a_b_c", "x.tmp", "9ae3@1@0@ff@bfloat16.data", "00000000000000000000000000000000",
		} {
			write(t, filepath.Join(dir, other), content(testLayout, 0, 1))
		}
		if err := os.MkdirAll(filepath.Join(root, path(3, 1)), 0o777); err != nil { // a directory of a block's name
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(dir, "1"), filepath.Join(root, path(4, 1))); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, path(8, 16)), content(testLayout, 8, 17)) // longer than its name says
		count(t, s, 0, 10, 0)
		hits(t, s, 0, 10, false)
		count(t, s, 8, 16, 0)
		// Another rank, adapter, model, version of the layout, instance, spec.
		for _, change := range []func(*rtpllm.Dir){
			func(d *rtpllm.Dir) { d.TPRank = 0 },
			func(d *rtpllm.Dir) { d.LoRA = "7" },
			func(d *rtpllm.Dir) { d.Checkpoint++ },
			func(d *rtpllm.Dir) { d.BlockTokens = 32 },
			func(d *rtpllm.Dir) { d.DType = 10 },
		} {
			d := testDir
			change(&d)
			write(t, filepath.Join(root, d.Path(), fmt.Sprintf("%d_%[1]d", number(0))), content(testLayout, 0, 1))
		}
		write(t, filepath.Join(root, "chat", "1", "no_lora", "64", "14", "0", "2", "1", fmt.Sprint(number(0))), content(testLayout, 0, 1))
		write(t, filepath.Join(root, "1", testSpec, fmt.Sprintf("%x", uint64(number(0)))), content(testLayout, 0, 1))
		write(t, filepath.Join(root, testInstance, "tp0_F0", fmt.Sprintf("%x", uint64(number(0)))), content(testLayout, 0, 1))
		count(t, s, 0, 1, 0)
		hits(t, s, 0, 1, false)
		save(t, s, 0, 1)
		hits(t, s, 0, 1, true)
	})
}

// Every key has a name of its own, from which it can be read.
func TestNamesDoNotCollide(t *testing.T) {
	some := []kv.Key{{}, {15: 1}, {0: 'k'}, keys.Uint64Key(1<<64 - 1), keys.Int64Key(-1), keys.Int64Key(0), keys.Int64Key(1), keys.Int64Key(0x10)}
	for name, format := range map[string]blockfiles.Format{
		"RtpLlm": rtpllmFormat{flat{16384, 16}}, "Kvcm": kvcmFormat{flat{16384, 16}, testInstance, testSpec},
	} {
		seen := map[string]kv.Key{}
		for _, key := range some {
			place, err := format.Place(key)
			if err != nil {
				t.Fatal(err)
			}
			if other, ok := seen[place.Name]; ok {
				t.Errorf("%s: %s and %s are both named %s", name, key, other, place.Name)
			}
			seen[place.Name] = key
			if back, ok := format.Key(place.Name); !ok || back != key {
				t.Errorf("%s: %s is named %s, which is read as %s, %v", name, key, place.Name, back, ok)
			}
		}
	}
}

func TestDelete(t *testing.T) {
	t.Run("RtpLlm", func(t *testing.T) {
		root := t.TempDir()
		s := openTest(t, "RtpLlm", Options{Root: root})
		write(t, filepath.Join(root, itemPath(0, 3)), content(testLayout, 0, 3))
		write(t, filepath.Join(root, itemPath(3, 1)), content(testLayout, 3, 1))
		save(t, s, 4, 2)
		count(t, s, 0, 6, 6)
		if err := s.Delete(t.Context(), prompt(1, 5)); err != nil {
			t.Fatal(err)
		}
		count(t, s, 0, 6, 0) // block 0 went with the item
		for first, n := range map[int]int{0: 3, 3: 1, 4: 1, 5: 1} {
			if _, err := os.Stat(filepath.Join(root, itemPath(first, n))); !os.IsNotExist(err) {
				t.Errorf("the item of block %d is there: %v", first, err)
			}
		}
	})
	t.Run("Kvcm", func(t *testing.T) {
		root := t.TempDir()
		s := openTest(t, "Kvcm", Options{Root: root})
		write(t, filepath.Join(root, filePath(0, 3)), content(testLayout, 0, 3))
		write(t, filepath.Join(root, filePath(3, 1)), content(testLayout, 3, 1))
		save(t, s, 4, 2)
		count(t, s, 0, 6, 6)
		if err := s.Delete(t.Context(), prompt(4, 2)); err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			if err := s.Delete(t.Context(), prompt(i, 1)); err == nil {
				t.Errorf("block %d is deleted, and the manager goes on naming it", i)
			}
		}
		count(t, s, 0, 6, 4)
	})
}

// While a prompt is deleted, its presence stays monotonic: a block is there only if all
// before it are.
func TestDeleteTakesTheSuffixFirst(t *testing.T) {
	root := t.TempDir()
	s := openTest(t, "RtpLlm", Options{Root: root})
	const blocks = 100
	save(t, s, 0, blocks)
	there := func() (n int) {
		for i := range blocks {
			if _, err := os.Stat(filepath.Join(root, itemPath(i, 1))); err == nil {
				n = i + 1
			}
		}
		return n
	}
	done := make(chan error, 1)
	go func() { done <- s.Delete(t.Context(), prompt(0, blocks)) }()
	for deleting := true; deleting; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			deleting = false
		default:
		}
		// Everything before the last that is there must be there: it was a moment earlier,
		// or the deletion did not begin at the end.
		last := there()
		for i := last - 1; i >= 0; i-- {
			if _, err := os.Stat(filepath.Join(root, itemPath(i, 1))); err == nil {
				continue
			}
			if after := there(); after > i+1 {
				t.Fatalf("block %d is gone before block %d", i, after-1)
			}
			break
		}
	}
	count(t, s, 0, blocks, 0)
}

func TestRequiredChecksums(t *testing.T) {
	each(t, func(t *testing.T, name, root string, path func(first, n int) string) {
		s := openTest(t, name, Options{Root: root, Checksums: kv.ChecksumsRequire})
		write(t, filepath.Join(root, path(0, 4)), content(testLayout, 0, 4))
		write(t, filepath.Join(root, path(4, 1)), content(testLayout, 4, 1))
		count(t, s, 0, 5, 0)
		count(t, s, 4, 1, 0)
		save(t, s, 4, 1)
		hits(t, s, 4, 1, true)
	})
}

func TestKeysListsFilesOfOneBlock(t *testing.T) {
	each(t, func(t *testing.T, name, root string, path func(first, n int) string) {
		s := openTest(t, name, Options{Root: root})
		write(t, filepath.Join(root, path(0, 4)), content(testLayout, 0, 4))
		write(t, filepath.Join(root, path(4, 1)), content(testLayout, 4, 1))
		save(t, s, 5, 1)
		want := map[kv.Key]bool{keys.Int64Key(number(5)): true}
		if name == "RtpLlm" { // whose directory says whose its files are
			want[keys.Int64Key(number(4))] = true
		}
		for key, err := range s.Keys(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if !want[key] {
				t.Errorf("lists %s", key)
			}
			delete(want, key)
		}
		if len(want) > 0 {
			t.Errorf("does not list %v", want)
		}
	})
}

func TestRefusals(t *testing.T) {
	root := t.TempDir()
	for what, open := range map[string]func() (*Store, error){
		"no root": func() (*Store, error) {
			return OpenRTPLLM(Options{Root: filepath.Join(root, "no"), Layout: testLayout}, testDir)
		},
		"no layout": func() (*Store, error) { return OpenRTPLLM(Options{Root: root}, testDir) },
		"no biz":    func() (*Store, error) { return OpenRTPLLM(Options{Root: root, Layout: testLayout}, rtpllm.Dir{}) },
		"a biz upwards": func() (*Store, error) {
			d := testDir
			d.Biz = "../x"
			return OpenRTPLLM(Options{Root: root, Layout: testLayout}, d)
		},
		"no instance":    func() (*Store, error) { return OpenKVCM(Options{Root: root, Layout: testLayout}, "", testSpec) },
		"a spec upwards": func() (*Store, error) { return OpenKVCM(Options{Root: root, Layout: testLayout}, testInstance, "..") },
		"too many": func() (*Store, error) {
			return OpenKVCM(Options{Root: root, Layout: testLayout, PackBlocks: 1025}, testInstance, testSpec)
		},
	} {
		if s, err := open(); err == nil {
			t.Errorf("%s: it opens", what)
			s.Close()
		}
	}
}
