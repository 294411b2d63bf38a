package lmcache_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	layout "github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

// fake makes an id of any key.
type fake struct{}

func (fake) ID(key kv.Key) (keys.ID, bool) { return keys.DigestID(append(key[:], make([]byte, 16)...)) }
func (fake) Key(id keys.ID) kv.Key         { return kv.Key(id.Bytes()[:16]) }

func chunk() *layout.Name {
	return &layout.Name{Model: "meta-llama/Llama-3-8B", WorldSize: 2, WorkerID: 1, DType: "bfloat16", Layer: layout.NoLayer}
}

// headerOf returns a header of chunks with that many bytes.
func headerOf(l kv.Layout) *layout.Header {
	return &layout.Header{
		PayloadBytes: l.BlockBytes, Format: layout.Format2LTD,
		Groups: []layout.Group{{DType: layout.DTypeUint8, Shape: [4]int{1, 1, 1, int(l.BlockBytes)}}},
	}
}

var shape = kv.Layout{BlockBytes: 8192, ShardBytes: 2048}

func in(dirs ...string) lmcache.Options {
	return lmcache.Options{BasePaths: dirs, Chunk: chunk(), Header: headerOf(shape), Layout: shape}
}

func open(t testing.TB, o lmcache.Options) *lmcache.Store {
	t.Helper()
	if o.Engine == nil {
		o.Engine = posix.New(posix.Options{Streams: 4})
	}
	s, err := lmcache.Open(o)
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

// content returns the block of a key.
func content(key kv.Key) []byte {
	rng := rand.New(rand.NewPCG(uint64(key[15]), uint64(key[14])))
	buf := make([]byte, shape.BlockBytes)
	for i := range buf {
		buf[i] = byte(rng.Uint32())
	}
	return buf
}

func save(t testing.TB, s kv.Store, all ...kv.Key) {
	t.Helper()
	var bufs [][]byte
	for _, k := range all {
		bufs = append(bufs, content(k))
	}
	task, err := s.Save(t.Context(), s.Layout().ByBlock(all, bufs))
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// load returns whether a block was loaded, which then has the right bytes.
func load(t testing.TB, s kv.Store, key kv.Key) error {
	t.Helper()
	buf := make([]byte, shape.BlockBytes)
	task, err := s.Load(t.Context(), s.Layout().ByBlock([]kv.Key{key}, [][]byte{buf}))
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(t.Context()); err != nil {
		return err
	}
	if !bytes.Equal(buf, content(key)) {
		t.Errorf("block %s: wrong bytes", key)
	}
	return nil
}

func has(t testing.TB, s kv.Store, key kv.Key) bool {
	t.Helper()
	found := make([]bool, 1)
	if err := s.Lookup(t.Context(), []kv.Key{key}, found); err != nil {
		t.Fatal(err)
	}
	return found[0]
}

func list(t testing.TB, s kv.Store) map[kv.Key]bool {
	t.Helper()
	all := map[kv.Key]bool{}
	for key, err := range s.Keys(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all[key] = true
	}
	return all
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write writes a file as LMCache does, and returns its path.
func write(t testing.TB, dir, name string, raw []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.MkdirAll(dir, 0o755))
	temporary := strings.TrimSuffix(path, ".data") + ".tmp"
	must(t, os.WriteFile(temporary, raw, 0o755))
	must(t, os.Rename(temporary, path))
	return path
}

// files returns the files of all blocks below a directory.
func files(t testing.TB, dir string) (all []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != dir && d.Name()[0] == '.' {
			return fs.SkipDir
		}
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(path, ".data") {
			all = append(all, path)
		}
		return err
	}))
	return all
}

// damage damages some of the files.
func damage(t testing.TB, all []string, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 5))
	for range 1 + rng.IntN(3) {
		ucmtest.DamageOne(t, all[rng.IntN(len(all))], all[rng.IntN(len(all))], seed)
	}
}

func nameOf(hash string) string {
	return fmt.Sprintf("meta-llama-SEP-Llama-3-8B@2@1@%s@bfloat16.data", hash)
}
