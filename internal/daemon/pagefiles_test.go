package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// pageIndex is a page index with a key of a rank of vLLM's.
type pageIndex struct {
	*testing.T
	*index.Index
	full  atomic.Bool // nothing can be logged
	space pageservice.Space
}

const pageFile = "hf3fs_vllm_data_file_0"

func newPageIndex(t *testing.T) *pageIndex {
	x := &pageIndex{T: t, space: pageservice.Space{Set: pageservice.VLLM}}
	log := journal.New(t.TempDir(), journal.Options{Commit: func(commit func() error) error {
		if x.full.Load() {
			return errors.New("disk full")
		}
		return commit()
	}})
	var err error
	x.Index, err = index.Open(log, index.Options{Options: pageservice.Options{World: 1}})
	x.must(err)
	t.Cleanup(func() { x.must(x.Close()) })
	_, err = x.Initialize(t.Context(), x.space, 0, pageservice.RankOptions{NumPages: 16})
	x.must(err)
	x.store("a")
	x.want("a", true)
	return x
}

func (x *pageIndex) must(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

func (x *pageIndex) store(key string) {
	x.Helper()
	grants, err := x.Reserve(x.Context(), x.space, 0, []string{key}, true)
	x.must(err)
	_, err = x.Confirm(x.Context(), x.space, 0, []pageservice.Placed{{Key: key, Page: grants[0].Page}}, nil)
	x.must(err)
}

func (x *pageIndex) found(key string) bool {
	x.Helper()
	there, err := x.Exists(x.Context(), x.space, []string{key})
	x.must(err)
	return there[0]
}

func (x *pageIndex) want(key string, found bool) {
	x.Helper()
	if got := x.found(key); got != found {
		x.Fatalf("%s is found: %t; want %t", key, got, found)
	}
}

func (x *pageIndex) files(data string, dirs ...string) *pageFiles {
	x.Helper()
	var all []PageDir
	for _, dir := range dirs {
		all = append(all, PageDir{Dir: dir})
	}
	p, err := newPageFiles(data, []string{data}, all, slog.New(slog.DiscardHandler))
	x.must(err)
	return p
}

// putPageFile makes a page file with bytes.
func putPageFile(t *testing.T, dir string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, pageFile), []byte("bytes"), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// Nobody finds a key of a page file that is gone as soon as that was said, whatever the disk does. Once they are
// forgotten, other keys are found.
func TestKeysVanishAtOnce(t *testing.T) {
	for what, at := range map[string]string{"the file": "sub/" + pageFile, "its directory": "sub"} {
		t.Run(what, func(t *testing.T) {
			x, data := newPageIndex(t), t.TempDir()
			putPageFile(t, filepath.Join(data, "sub"))
			p := x.files(data, "sub")
			p.Vanished(at) // nobody is served
			end, err := p.serve(x.Index)
			x.must(err)
			defer func() { end() }()
			p.Vanished("sub/any")
			p.Vanished(pageFile)
			p.Vanished("other/" + pageFile)
			x.want("a", true)
			x.full.Store(true)
			for range 3 {
				p.Vanished(at)
			}
			x.want("a", false)
			p.mu.Lock()
			if len(p.lost) > 1 {
				t.Errorf("%d losses of one set are remembered", len(p.lost))
			}
			p.mu.Unlock()
			x.full.Store(false)
			for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
				if x.store("b"); x.found("b") {
					break
				}
				if time.Now().After(end) {
					t.Fatal("new keys are not found")
				}
			}
			x.want("a", false)
		})
	}
}

// A service starts whatever is in the place of a directory of page files, and finds no key of what is not there.
func TestOddDirectoriesOfPageFiles(t *testing.T) {
	for what, c := range map[string]struct {
		make func(at, elsewhere string) error
		keys bool
	}{
		"a directory":              {func(at, elsewhere string) error { return os.Rename(elsewhere, at) }, true},
		"nothing":                  {func(at, elsewhere string) error { return nil }, false},
		"a file":                   {func(at, elsewhere string) error { return os.WriteFile(at, nil, 0o644) }, false},
		"a link":                   {func(at, elsewhere string) error { return os.Symlink(elsewhere, at) }, false},
		"a link to itself":         {func(at, elsewhere string) error { return os.Symlink(at, at) }, false},
		"a link to another system": {func(at, elsewhere string) error { return os.Symlink("/proc", at) }, false},
	} {
		t.Run(what, func(t *testing.T) {
			x, data := newPageIndex(t), t.TempDir()
			elsewhere := filepath.Join(data, "elsewhere")
			putPageFile(t, elsewhere)
			x.must(os.Mkdir(filepath.Join(data, "user"), 0o755))
			x.must(c.make(filepath.Join(data, "user", "pages"), elsewhere))
			end, err := x.files(data, "user/pages").serve(x.Index)
			x.must(err)
			defer end()
			x.want("a", c.keys)
		})
	}
}
