package objects

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
)

// dir is a Backend that keeps objects in files.
type dir string

func (d dir) path(name string) string { return filepath.Join(string(d), name) }

func (d dir) Has(_ context.Context, names []string, found []bool) error {
	for i, name := range names {
		_, err := os.Lstat(d.path(name))
		found[i] = err == nil
	}
	return nil
}

func (d dir) Get(_ context.Context, name string, off int64, buf []byte) error {
	f, err := os.Open(d.path(name))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.ReadAt(buf, off); err == io.EOF {
		return fs.ErrNotExist
	} else if err != nil {
		return err
	}
	return nil
}

func (d dir) Put(_ context.Context, name string, object []byte) error {
	if err := os.MkdirAll(filepath.Dir(d.path(name)), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(d), "put-")
	if err != nil {
		return err
	}
	if _, err := f.Write(object); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), d.path(name))
}

func (d dir) Delete(_ context.Context, names []string) error {
	for _, name := range names {
		if err := os.Remove(d.path(name)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

func (d dir) List(_ context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		_ = filepath.WalkDir(string(d), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return nil
			}
			if name, _ := filepath.Rel(string(d), path); strings.HasPrefix(name, prefix) && !yield(name, nil) {
				return fs.SkipAll
			}
			return nil
		})
	}
}

func (d dir) Close() error { return nil }

func TestStore(t *testing.T) {
	storesuite.Run(t, storesuite.Subject{
		Open: func(_ testing.TB, path string, o storesuite.Options) kv.Store {
			return New(dir(path), Options{Name: "Mine", Layout: o.Layout, Namespace: o.Namespace, Timeout: 10 * time.Second})
		},
		Durable: true, Verified: true, Versions: true, Seeds: 8,
		Damage: damage,
	})
}

// damage changes some files: bits, zeros, the length, another block's bytes.
func damage(t testing.TB, path string, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	var files []string
	err := filepath.WalkDir(path, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatal(len(files), err)
	}
	for range 1 + rng.IntN(3) {
		file := files[rng.IntN(len(files))]
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		switch seed % 4 {
		case 0:
			if len(content) > 0 {
				content[rng.IntN(len(content))] ^= 1 << rng.IntN(8)
			}
		case 1:
			at := rng.IntN(len(content) + 1)
			clear(content[at:min(len(content), at+512)])
		case 2:
			content = content[:rng.IntN(len(content)+1)]
		case 3:
			if content, err = os.ReadFile(files[rng.IntN(len(files))]); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
