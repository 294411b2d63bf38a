package gdsfiles

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/gds"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// pathOf returns where the data of a block is in a root.
func pathOf(t *testing.T, dir string, key kv.Key) string {
	t.Helper()
	f, err := newFormat(options(dir), false)
	if err != nil {
		t.Fatal(err)
	}
	at, err := f.Place(key)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, at.Dir, at.Name)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writeOld writes a file that sweeping takes for old.
func writeOld(t *testing.T, path string, raw []byte) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, raw, 0o644))
}

// waitForSweep waits until a store that is opened after this has removed what is old: it looks
// at its own temporary files last.
func waitForSweep(t *testing.T, dir string) (waited func()) {
	t.Helper()
	last := filepath.Join(dir, ".kv3fs-temp", strings.Repeat("0", 32)+".01234567-1")
	writeOld(t, last, nil)
	tick(t, dir)
	return func() {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !os.IsNotExist(statErr(last)); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nothing old was removed")
			}
		}
	}
}

// Files that only end as LMCache's do are nobody's orphans.
func TestFilesOfStrangersStay(t *testing.T) {
	dir := t.TempDir()
	orphan := pathOf(t, dir, keys.Int64Key(123456))
	inside, name := filepath.Dir(orphan), filepath.Base(orphan)
	strangers := []string{
		filepath.Join(dir, "model.kvcache.safetensors"),
		filepath.Join(dir, "model.weka1"),
		filepath.Join(dir, "model.weka1.metadata"),
		filepath.Join(dir, "model.weka1.tmp01234567"),
		filepath.Join(dir, name), // no chunk is in the root
		filepath.Join(dir, name+".tmp01234567"),
		filepath.Join(inside, "model.weka1"),
		filepath.Join(inside, "model.kvcache.safetensors.tmp01234567"),
		filepath.Join(inside, strings.Replace(name, "1e240", "1e24", 1)), // the directory is another hash's
		filepath.Join(inside, strings.Replace(name, "1e240", "zzz", 1)),
		filepath.Join(dir, "12", name),
	}
	for _, path := range append(strangers, orphan, orphan+".tmp01234567") {
		writeOld(t, path, []byte("x"))
	}
	waited := waitForSweep(t, dir)
	open(t, sweeping(dir))
	waited()
	for _, path := range strangers {
		if err := statErr(path); err != nil {
			t.Errorf("a stranger's file is removed: %v", err)
		}
	}
	for _, path := range []string{orphan, orphan + ".tmp01234567"} {
		if !os.IsNotExist(statErr(path)) {
			t.Errorf("%s is left", path)
		}
	}
}

// A block that waits for its place in the spare directory keeps its side file.
func TestSpareKeepsItsSideFile(t *testing.T) {
	dir, key := t.TempDir(), keys.Int64Key(123456)
	s := open(t, options(dir))
	save(t, s, key)
	must(t, s.Close())
	path := pathOf(t, dir, key)
	raw, err := os.ReadFile(path + gds.SideSuffix)
	must(t, err)
	writeOld(t, path+gds.SideSuffix, raw)
	spare := filepath.Join(dir, ".kv3fs-spare", filepath.Base(path))
	must(t, os.MkdirAll(filepath.Dir(spare), 0o755))
	must(t, os.Rename(path, spare))
	waited := waitForSweep(t, dir)
	s = open(t, sweeping(dir))
	waited()
	must(t, s.Close()) // it ends what it is doing
	s = open(t, options(dir))
	if err := load(t, s, key); err != nil || !has(t, s, key) {
		t.Errorf("the block is lost: %v", err)
	}
}

// LMCache may write a chunk that the store has saved. Its file is no damage of the store's, and
// stays. It is loaded as any of LMCache's.
func TestLMCacheReplaces(t *testing.T) {
	key := keys.Int64Key(123456)
	for name, change := range map[string]func(head, block []byte) []byte{
		"the same bytes": func(head, block []byte) []byte { return slices.Concat(head, block) },
		"others":         func(head, block []byte) []byte { block[100]++; return slices.Concat(head, block) },
		"another shape": func(head, block []byte) []byte {
			return slices.Concat(bytes.Replace(head, []byte("[2, 2, 16, 64]"), []byte("[2, 4, 16, 32]"), 1), block)
		},
		"a shorter chunk": func(head, block []byte) []byte { return slices.Concat(head, block[:4096]) },
	} {
		for _, sums := range []kv.Checksums{kv.ChecksumsAuto, kv.ChecksumsRequire} {
			t.Run(name+", "+string(sums), func(t *testing.T) {
				dir := t.TempDir()
				o := options(dir)
				o.Checksums = sums
				s := open(t, o)
				save(t, s, key)
				path := pathOf(t, dir, key)
				head, err := os.ReadFile(path + gds.SideSuffix)
				must(t, err)
				theirs := change(head, content(key))
				for name, raw := range map[string][]byte{path: theirs, path + gds.SideSuffix: theirs[:gds.HeaderBytes]} {
					must(t, os.WriteFile(name+".tmp01234567", raw, 0o644))
					must(t, os.Rename(name+".tmp01234567", name))
				}
				want := error(nil)
				if name == "another shape" || name == "a shorter chunk" || name == "others" && sums == kv.ChecksumsRequire {
					want = kv.ErrMiss
				}
				for range 2 {
					buf := make([]byte, layout.BlockBytes)
					task, err := s.Load(t.Context(), layout.ByBlock([]kv.Key{key}, [][]byte{buf}))
					must(t, err)
					if err := task.Wait(t.Context()); err != want || err == nil && !bytes.Equal(buf, theirs[gds.HeaderBytes:]) {
						t.Errorf("loaded: %v", err)
					}
				}
				if found := has(t, s, key); found != (want == nil) {
					t.Errorf("found: %v", found)
				}
				if left, err := os.ReadFile(path); err != nil || !bytes.Equal(left, theirs) {
					t.Errorf("LMCache's file: %d bytes, %v", len(left), err)
				}
				if st := s.Stats(); st.CorruptBlocks > 0 {
					t.Errorf("%+v", st)
				}
				save(t, s, key) // over what is no hit
				if want != nil {
					must(t, load(t, s, key))
				}
			})
		}
	}
}
