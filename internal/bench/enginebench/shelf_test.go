package enginebench

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// shelf is a directory of blocks that outlives the stores opened over it.
type shelf struct {
	testing.TB
	dir       string
	checksums kvstore.Checksums

	mu        sync.Mutex
	opened    int
	namespace keys.Namespace // for which it was opened last
	beforeRun func()         // called by open
}

func newShelf(t testing.TB) *shelf { return &shelf{TB: t, dir: filepath.Join(t.TempDir(), "blocks")} }

// open is an Options.Open.
func (s *shelf) open(_ context.Context, w Want) (*kvstore.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	s.namespace = w.Namespace
	if s.beforeRun != nil {
		s.beforeRun()
	}
	// Blocks of another model have another size.
	dir := s.dir + w.Namespace.Model
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	return kvstore.Open("Posix", kvstore.Config{
		Namespace: w.Namespace, Layout: w.Layout, Speed: w.Speed, Checksums: s.checksums,
		Posix: &kvstore.PosixOptions{Dirs: []string{dir}},
	})
}

// flip changes a byte of the block, "" for each block.
func (s *shelf) flip(block string) (flipped int) {
	s.Helper()
	err := filepath.WalkDir(filepath.Dir(s.dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || len(d.Name()) != 32 || block != "" && d.Name() != block {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		one := make([]byte, 1)
		if _, err := f.ReadAt(one, 100); err != nil {
			return err
		}
		one[0]++
		flipped++
		_, err = f.WriteAt(one, 100)
		return err
	})
	if err != nil || flipped == 0 {
		s.Errorf("%d blocks were damaged: %v", flipped, err)
	}
	return flipped
}
