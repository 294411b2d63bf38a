package pages

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Options that cannot work are refused, and the error says what to do about it.
func TestOpenRefuses(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	ours := func(t *testing.T, o *Options) {
		if err := mustOpen(t, *o).Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		prepare func(*testing.T, *Options)
		says    string
	}{
		"a directory that is missing":   {func(t *testing.T, o *Options) { o.File = filepath.Join(t.TempDir(), "none", "pages") }, "directory is missing"},
		"a directory":                   {func(t *testing.T, o *Options) { o.File = t.TempDir() }, "no plain file"},
		"a new file without a capacity": {func(t *testing.T, o *Options) { o.CapacityBytes = 0 }, "raise the capacity"},
		"a capacity below one page":     {func(t *testing.T, o *Options) { o.CapacityBytes = 4096 }, "raise the capacity"},
		"a capacity beyond the disk":    {func(t *testing.T, o *Options) { o.CapacityBytes = 1 << 60 }, "bytes for it"},
		"somebody else's file": {func(t *testing.T, o *Options) {
			if err := os.WriteFile(o.File, []byte(strings.Repeat("precious", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "no page file of kv3fs"},
		"a file that was cut short": {func(t *testing.T, o *Options) {
			ours(t, o)
			if err := os.Truncate(o.File, 20000); err != nil {
				t.Fatal(err)
			}
		}, "cut short"},
		"a damaged label": {func(t *testing.T, o *Options) {
			ours(t, o)
			f, err := os.OpenFile(o.File, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte{1}, 100); err != nil {
				t.Fatal(err)
			}
		}, "label is damaged"},
		"another model's file":   {func(t *testing.T, o *Options) { ours(t, o); o.Namespace = kv.Fingerprint{99} }, "another model's"},
		"other blocks":           {func(t *testing.T, o *Options) { ours(t, o); o.Layout.ShardBytes = 2048 }, "in shards of 2048"},
		"another rank":           {func(t *testing.T, o *Options) { ours(t, o); o.Rank = 1 }, "rank 0, not 1"},
		"another capacity":       {func(t *testing.T, o *Options) { ours(t, o); o.CapacityBytes *= 2 }, "it has 8 pages"},
		"a negative rank":        {func(t *testing.T, o *Options) { o.Rank = -1 }, "begin at 0"},
		"no file":                {func(t *testing.T, o *Options) { o.File = "" }, "no page file"},
		"no layout":              {func(t *testing.T, o *Options) { o.Layout = kv.Layout{} }, "block_size"},
		"unknown checksums":      {func(t *testing.T, o *Options) { o.Checksums = "perhaps" }, "auto, require and off"},
		"a long timeout":         {func(t *testing.T, o *Options) { o.Timeout = time.Hour }, "--pages-reserve"},
		"no URL":                 {func(t *testing.T, o *Options) { o.URL = "" }, "want http://HOST:PORT"},
		"a URL of another kind":  {func(t *testing.T, o *Options) { o.URL = "ftp://host:1" }, "want http://HOST:PORT"},
		"a URL with a namespace": {func(t *testing.T, o *Options) { o.URL += "/ns/mine" }, "has a path"},
	} {
		t.Run(name, func(t *testing.T) {
			o := h.options(t.TempDir(), 8)
			c.prepare(t, &o)
			before, _ := os.ReadFile(o.File)
			s, err := Open(o)
			if err == nil {
				s.Close()
				t.Fatal("Open succeeded")
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
			if after, _ := os.ReadFile(o.File); !slices.Equal(before, after) {
				t.Error("Open changed the file")
			}
		})
	}
}

func TestOpenWithoutAService(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	h.stop()
	o := h.options(t.TempDir(), 8)
	o.Timeout = 500 * time.Millisecond
	_, err := Open(o)
	if !errors.Is(err, kv.ErrTimeout) || !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "kv3fs serve") {
		t.Fatal(err)
	}
	h.start()
	mustOpen(t, o) // it uses what the first one left
}

// If several stores create a file at once, one does, and all use it.
func TestOpenAtOnce(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 50)
	stores := make([]*Store, 6)
	var together sync.WaitGroup
	for i := range stores {
		together.Go(func() {
			var err error
			if stores[i], err = Open(o); err != nil {
				t.Error(err)
			}
		})
	}
	together.Wait()
	for i, s := range stores {
		if s == nil {
			continue
		}
		defer s.Close()
		if err := errors.Join(save(t, s, key(i))...); err != nil {
			t.Fatal(err)
		}
		if s.label != stores[0].label {
			t.Fatalf("%+v and %+v", s.label, stores[0].label)
		}
	}
	for _, s := range stores {
		if err := errors.Join(load(t, s, keysOf(0, len(stores))...)...); err != nil {
			t.Fatal(err)
		}
	}
}

// A file of zeros is used with the size that it has.
func TestOpenTakesAFileOfZeros(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 0)
	if err := os.WriteFile(o.File, make([]byte, 10*strideOf(layout)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, o)
	if got := s.label.pages; got != 9 { // the label takes some of it
		t.Fatalf("%d pages", got)
	}
	s.Close()
	o.CapacityBytes = 0
	if got := mustOpen(t, o).label.pages; got != 9 {
		t.Fatalf("%d pages", got)
	}
}

// Keys of a file that was removed are not found in the one that takes its place.
func TestAFileThatIsMadeAnewIsEmpty(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 8)
	s := mustOpen(t, o)
	if err := errors.Join(save(t, s, key(0))...); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := os.Remove(o.File); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, o)
	if lookup(t, s, key(0))[0] {
		t.Error("the old file's block is found")
	}
	if got := s.Stats().CorruptBlocks; got != 0 {
		t.Error(got)
	}
}

// openAgain opens the file that was open before, and no other.
func TestOpenAgainTakesNoOther(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 8)
	s := mustOpen(t, o)
	f, err := openAgain(&o, s.label)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Remove(o.File); err != nil {
		t.Fatal(err)
	}
	if _, err := openAgain(&o, s.label); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is gone: %v", err)
	}
	mustOpen(t, o)
	if _, err := openAgain(&o, s.label); err == nil || !strings.Contains(err.Error(), "taken its place") {
		t.Errorf("a file that was made anew: %v", err)
	}
}
