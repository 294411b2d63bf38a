package files_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var layout = kv.Layout{BlockBytes: 8192, ShardBytes: 2048}

func key(i int) kv.Key {
	rng := rand.New(rand.NewPCG(uint64(i), 11))
	var k kv.Key
	for n := range k {
		k[n] = byte(rng.Uint32())
	}
	return k
}

func keys(n int) []kv.Key {
	all := make([]kv.Key, n)
	for i := range all {
		all[i] = key(i)
	}
	return all
}

// content returns the block of a key, as a writer computed it.
func content(k kv.Key, variant uint64) []byte {
	rng := rand.New(rand.NewPCG(uint64(k[0])<<8|uint64(k[1]), variant))
	buf := make([]byte, layout.BlockBytes)
	for i := range buf {
		buf[i] = byte(rng.Uint32())
	}
	return buf
}

func open(t testing.TB, o files.Options) *files.Store {
	t.Helper()
	if o.Layout == (kv.Layout{}) {
		o.Layout = layout
	}
	s, err := files.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func in(dirs ...string) files.Options { return files.Options{Dirs: dirs, Streams: 4} }

func save(t testing.TB, s kv.Store, variant uint64, all ...kv.Key) error {
	t.Helper()
	var bufs [][]byte
	for _, k := range all {
		bufs = append(bufs, content(k, variant))
	}
	task, err := s.Save(t.Context(), s.Layout().ByBlock(all, bufs))
	if err != nil {
		t.Fatal(err)
	}
	return task.Wait(t.Context())
}

// load loads one block.
func load(t testing.TB, s kv.Store, k kv.Key) ([]byte, error) {
	t.Helper()
	buf := make([]byte, s.Layout().BlockBytes)
	task, err := s.Load(t.Context(), s.Layout().ByBlock([]kv.Key{k}, [][]byte{buf}))
	if err != nil {
		t.Fatal(err)
	}
	return buf, task.Wait(t.Context())
}

// loads checks that a block has the content of one of the variants.
func loads(t testing.TB, s kv.Store, k kv.Key, variants ...uint64) {
	t.Helper()
	got, err := load(t, s, k)
	if err != nil {
		t.Errorf("block %s: %v", k, err)
		return
	}
	for _, v := range variants {
		if bytes.Equal(got, content(k, v)) {
			return
		}
	}
	t.Errorf("block %s: wrong bytes", k)
}

func has(t testing.TB, s kv.Store, k kv.Key) bool {
	t.Helper()
	found := make([]bool, 1)
	if err := s.Lookup(t.Context(), []kv.Key{k}, found); err != nil {
		t.Fatal(err)
	}
	return found[0]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ucmPath returns where UCM's Posix store has a block by default.
func ucmPath(dir string, k kv.Key) string {
	id := k.String()
	return filepath.Join(dir, id[:3], id)
}

// ucmWrites writes a block as UCM does.
func ucmWrites(t testing.TB, dir string, k kv.Key, raw []byte) {
	t.Helper()
	path := ucmPath(dir, k)
	must(t, os.MkdirAll(filepath.Dir(path), 0o774))
	must(t, os.WriteFile(path+".tmp", raw, 0o644))
	must(t, os.Rename(path+".tmp", path))
}

// eventually polls until is returns true.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for patience := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(patience) {
			t.Fatalf("not in half a minute: %s", what)
		}
	}
}
