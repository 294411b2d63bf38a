package blockfiles

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// lettered is a Format with everything that a Format may have: directories in two levels,
// a head, a side file, and keys that have no place.
type lettered struct{ BlockBytes int64 }

const letteredHead = 12

func (l lettered) Place(key kv.Key) (Place, error) {
	n, ok := key.Uint64()
	if !ok {
		return Place{}, errors.New("it is no number")
	}
	name := fmt.Sprintf("%016x.block", n)
	return Place{
		Dir: filepath.Join("d"+name[14:15], "e"+name[15:16]), Name: name, Side: name + ".side",
		Offset: letteredHead, Bytes: letteredHead + l.BlockBytes,
	}, nil
}

func (l lettered) Key(name string) (kv.Key, bool) {
	var n uint64
	_, err := fmt.Sscanf(name, "%x.block", &n)
	return keys.Uint64Key(n), err == nil
}

func (l lettered) HasBlocks(dir string) bool {
	parts := strings.Split(dir, "/")
	return parts[0][0] == 'd' && (len(parts) == 1 || len(parts) == 2 && parts[1][0] == 'e')
}

func (l lettered) Root(key kv.Key, roots int) int {
	n, _ := key.Uint64()
	return int(n % uint64(roots))
}

func (l lettered) Head(key kv.Key) []byte {
	n, _ := key.Uint64()
	return binary.BigEndian.AppendUint64([]byte("HEAD"), n)
}

func (l lettered) CheckHead(key kv.Key, head []byte) error {
	if !bytes.Equal(head, l.Head(key)) {
		return errors.New("the head is wrong")
	}
	return nil
}

func (l lettered) Unfinished(kv.Key) string { return "" }

type letteredWorld struct {
	t    *testing.T
	s    *Store
	l    kv.Layout
	dirs []string
}

func newLetteredWorld(t *testing.T, o Options) *letteredWorld {
	w := &letteredWorld{t: t, l: kv.Layout{BlockBytes: 3000, ShardBytes: 1000}, dirs: []string{t.TempDir(), t.TempDir()}}
	o.Layout, o.Roots, o.Format = w.l, w.dirs, lettered{w.l.BlockBytes}
	w.s = openOver(t, o, func(e transfer.Engine) transfer.Engine { return e })
	return w
}

func (w *letteredWorld) content(key kv.Key) []byte {
	return bytes.Repeat([]byte{key[15], 7, key[14]}, int(w.l.BlockBytes/3))
}

func (w *letteredWorld) save(key kv.Key) {
	w.t.Helper()
	task, err := w.s.Save(w.t.Context(), w.l.ByBlock([]kv.Key{key}, [][]byte{w.content(key)}))
	wait(w.t, task, err)
}

func (w *letteredWorld) load(key kv.Key) error {
	w.t.Helper()
	buf := make([]byte, w.l.BlockBytes)
	task, err := w.s.Load(w.t.Context(), w.l.ByBlock([]kv.Key{key}, [][]byte{buf}))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := task.Wait(w.t.Context()); err != nil {
		return err
	}
	if !bytes.Equal(buf, w.content(key)) {
		w.t.Errorf("block %s: wrong bytes", key)
	}
	return nil
}

func (w *letteredWorld) has(key kv.Key) bool {
	w.t.Helper()
	found := make([]bool, 1)
	if err := w.s.Lookup(w.t.Context(), []kv.Key{key}, found); err != nil {
		w.t.Fatal(err)
	}
	return found[0]
}

func (w *letteredWorld) keys() (all []kv.Key) {
	w.t.Helper()
	for key, err := range w.s.Keys(w.t.Context()) {
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, key)
	}
	slices.SortFunc(all, func(a, b kv.Key) int { return bytes.Compare(a[:], b[:]) })
	return all
}

// path returns where a block is, in the root that it is written to.
func (w *letteredWorld) path(key kv.Key) string {
	return w.s.path(w.s.roots[w.s.o.Format.Root(key, 2)], key)
}

// theirs writes a block as another program does.
func (w *letteredWorld) theirs(root int, key kv.Key, head []byte) string {
	w.t.Helper()
	path := w.s.path(w.s.roots[root], key)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	for name, raw := range map[string][]byte{path: slices.Concat(head, w.content(key)), path + ".side": head} {
		if err := os.WriteFile(name, raw, 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	return path
}

func TestFilesHaveTheFormat(t *testing.T) {
	w := newLetteredWorld(t, Options{SumsDir: "sums of mine"})
	for n := range uint64(40) {
		key := keys.Uint64Key(n)
		w.save(key)
		head := w.s.o.Format.Head(key)
		for path, want := range map[string][]byte{w.path(key): slices.Concat(head, w.content(key)), w.path(key) + ".side": head} {
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %v, %d bytes", path, err, len(got))
			}
		}
		if err := w.load(key); err != nil {
			t.Error(err)
		}
	}
	if all := w.keys(); len(all) != 40 || all[7] != keys.Uint64Key(7) {
		t.Errorf("%d blocks are listed: %v", len(all), all)
	}
	gone := []kv.Key{keys.Uint64Key(3), keys.Uint64Key(4)}
	if err := w.s.Delete(t.Context(), gone); err != nil {
		t.Error(err)
	}
	for _, key := range gone {
		if left, _ := filepath.Glob(w.path(key) + "*"); len(left) > 0 || w.has(key) {
			t.Errorf("left of a deleted block: %v", left)
		}
	}
	for _, dir := range w.dirs {
		logs, _ := filepath.Glob(filepath.Join(dir, "sums of mine", "*.log"))
		if _, err := os.Stat(filepath.Join(dir, sums.DirName)); len(logs) == 0 || err == nil {
			t.Error("the checksum logs are not where they are to be")
		}
		if left, _ := os.ReadDir(filepath.Join(dir, ".temp")); len(left) > 0 {
			t.Errorf("temporary files are left: %v", left)
		}
	}
}

func TestKeyWithoutAPlace(t *testing.T) {
	w := newLetteredWorld(t, Options{})
	none := kv.Key{1}
	_, err := w.s.Save(t.Context(), append(w.l.ByBlock([]kv.Key{keys.Uint64Key(1)}, [][]byte{make([]byte, w.l.BlockBytes)}),
		kv.Shard{Key: none, Buf: make([]byte, w.l.ShardBytes)}))
	var refused *kv.BatchError
	if !errors.As(err, &refused) || refused.Shard != 3 || refused.Key != none || !strings.Contains(err.Error(), "it is no number") {
		t.Errorf("Save: %v", err)
	}
	if w.has(none) || w.has(keys.Uint64Key(1)) {
		t.Error("found")
	}
	if err := w.load(none); err != kv.ErrMiss {
		t.Errorf("Load: %v", err)
	}
	if err := w.s.Delete(t.Context(), []kv.Key{none}); err == nil {
		t.Error("Delete says that it is gone")
	}
}

// A block of another program's counts only with the right head and a side file.
func TestHeadAndSideOfOthers(t *testing.T) {
	key := keys.Uint64Key(5)
	head := lettered{}.Head(key)
	for name, c := range map[string]struct {
		head []byte
		do   func(path string) error
		good bool
	}{
		"whole":          {head, nil, true},
		"wrong head":     {[]byte("HEAD........"), nil, false},
		"without side":   {head, func(path string) error { return os.Remove(path + ".side") }, false},
		"without a head": {nil, nil, false},
		"only a side":    {head, os.Remove, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newLetteredWorld(t, Options{NamesTell: true})
			path := w.theirs(0, key, c.head)
			if c.do != nil {
				if err := c.do(path); err != nil {
					t.Fatal(err)
				}
			}
			if w.has(key) != c.good || (w.load(key) == nil) != c.good || len(w.keys()) == 1 != c.good {
				t.Errorf("found %v, loaded %v, listed %v", w.has(key), w.load(key), w.keys())
			}
			if c.good {
				if err := w.s.Delete(t.Context(), []kv.Key{key}); err != nil || w.has(key) {
					t.Errorf("deleted: %v, and found: %v", err, w.has(key))
				}
				if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
					t.Errorf("left of a deleted block: %v", left)
				}
			}
			// It is no obstacle to a Save, and then it is whole.
			w.save(key)
			if err := w.load(key); err != nil || !w.has(key) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Without NamesTell nobody knows whose a block of another program's is.
func TestNamesThatTellNothing(t *testing.T) {
	key := keys.Uint64Key(5)
	w := newLetteredWorld(t, Options{})
	path := w.theirs(0, key, lettered{}.Head(key))
	if err := w.load(key); err != nil || !w.has(key) {
		t.Errorf("%v", err)
	}
	if all := w.keys(); len(all) > 0 {
		t.Errorf("listed: %v", all)
	}
	if err := w.s.Delete(t.Context(), []kv.Key{key}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("deleted: %v", err)
	}
}

// The head of a recorded block is part of what is checked, and its side file goes with it.
func TestDamagedHead(t *testing.T) {
	key := keys.Uint64Key(5)
	w := newLetteredWorld(t, Options{})
	w.save(key)
	path := w.path(key)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("X"), 2); err != nil {
		t.Fatal(err)
	}
	if err := w.load(key); !errors.Is(err, kv.ErrCorrupt) || !strings.Contains(err.Error(), "the head is wrong") {
		t.Error(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 || w.has(key) {
		t.Errorf("left of a damaged block: %v", left)
	}
	w.save(key)
	if err := w.load(key); err != nil {
		t.Error(err)
	}
}

// A side file is there for a whole block only: the block gets its name before, and loses it
// after.
func TestOrderOfPairs(t *testing.T) {
	key := keys.Uint64Key(5)
	// inTheWay is what can be neither removed as a file nor replaced by one.
	inTheWay := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(path, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	save := func(w *letteredWorld) error {
		t.Helper()
		task, err := w.s.Save(t.Context(), w.l.ByBlock([]kv.Key{key}, [][]byte{w.content(key)}))
		if err != nil {
			t.Fatal(err)
		}
		return task.Wait(t.Context())
	}

	w := newLetteredWorld(t, Options{})
	inTheWay(w.path(key))
	if err := save(w); err == nil {
		t.Error("saved where a directory is")
	}
	if _, err := os.Lstat(w.path(key) + ".side"); !os.IsNotExist(err) {
		t.Errorf("a side file without a block: %v", err)
	}

	w = newLetteredWorld(t, Options{})
	inTheWay(w.path(key) + ".side")
	if err := save(w); err == nil || w.has(key) {
		t.Errorf("without a side file: %v, found %v", err, w.has(key))
	}
	if _, err := os.Lstat(w.path(key)); !os.IsNotExist(err) {
		t.Errorf("a block that nobody finds is left: %v", err)
	}

	w = newLetteredWorld(t, Options{})
	w.save(key)
	side := w.path(key) + ".side"
	if err := os.Remove(side); err != nil {
		t.Fatal(err)
	}
	inTheWay(side)
	if err := w.s.Delete(t.Context(), []kv.Key{key}); err == nil {
		t.Error("a side file that stays is said to be gone")
	}
	if _, err := os.Lstat(w.path(key)); err != nil {
		t.Errorf("the block went before its side file: %v", err)
	}
}

// The side file of a block without a record says the same as its head.
func TestSideThatLies(t *testing.T) {
	key := keys.Uint64Key(5)
	head := lettered{}.Head(key)
	for name, side := range map[string][]byte{
		"empty": {}, "short": head[:5], "zeros": make([]byte, letteredHead), "another block's": lettered{}.Head(keys.Uint64Key(6)),
	} {
		t.Run(name, func(t *testing.T) {
			w := newLetteredWorld(t, Options{NamesTell: true})
			path := w.theirs(0, key, head)
			if err := os.WriteFile(path+".side", side, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := w.load(key); err != kv.ErrMiss || w.has(key) || len(w.keys()) > 0 {
				t.Errorf("loaded %v, found %v, listed %v", err, w.has(key), w.keys())
			}
			w.save(key)
			if err := w.load(key); err != nil || !w.has(key) {
				t.Error(err)
			}
		})
	}
}
