package pages

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// While the file system of the page file fails, and the page service does not, no key is deleted:
// neither by loads nor by saves. Afterwards all blocks are there.
func TestAnOutageDeletesNothing(t *testing.T) {
	dir := faultdir.New(t)
	h := newHost(t, pageservice.Options{})
	o := h.options(dir.Path, 40)
	s := mustOpen(t, o)
	stored(t, s, keysOf(0, 8)...)
	dir.Fail(faultdir.EIO("read", "write"))
	for range 2 {
		for _, err := range load(t, s, keysOf(0, 8)...) {
			if !errors.Is(err, syscall.EIO) || errors.Is(err, kv.ErrMiss) {
				t.Errorf("a load meanwhile: %v", err)
			}
		}
		for i, found := range lookup(t, s, keysOf(0, 8)...) {
			if found {
				t.Errorf("block %d is found though it cannot be read", i)
			}
		}
		for _, err := range save(t, s, keysOf(0, 8)...) {
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("a save meanwhile: %v", err)
			}
		}
	}
	dir.Heal()
	there(t, mustOpen(t, o), keysOf(0, 8)...) // for another process
	if st := s.Stats(); st.CorruptBlocks > 0 || st.QuarantinedBlocks > 0 {
		t.Errorf("%+v", st)
	}
	stored(t, s, keysOf(0, 8)...)
	there(t, s, keysOf(0, 8)...)
}

// What could not be read for a moment is found again after a while, also without a save.
func TestUnreadableIsForgotten(t *testing.T) {
	dir := faultdir.New(t)
	s := mustOpen(t, newHost(t, pageservice.Options{}).options(dir.Path, 40))
	stored(t, s, keysOf(0, 3)...)
	dir.Fail(faultdir.EIO("read"))
	load(t, s, keysOf(0, 3)...)
	dir.Heal()
	for end := time.Now().Add(time.Minute); slices.Contains(lookup(t, s, keysOf(0, 3)...), false); {
		if time.Now().After(end) {
			t.Fatal("not found though it can be read")
		}
		s.unreadable.mu.Lock() // a record may be noted later than its shards are settled
		for k, what := range s.unreadable.blocks {
			what.until = what.until.Add(-kv.UnreadableFor)
			s.unreadable.blocks[k] = what
		}
		s.unreadable.mu.Unlock()
	}
	if err := errors.Join(load(t, s, keysOf(0, 3)...)...); err != nil {
		t.Error(err)
	}
}

// The label may lie in the page cache while nothing of the disk answers: it says nothing of the disk then.
func TestACachedLabelIsNoWitness(t *testing.T) {
	dir := faultdir.New(t)
	dir.Cache()
	o := newHost(t, pageservice.Options{}).options(dir.Path, 40)
	s := mustOpen(t, o)
	stored(t, s, keysOf(0, 8)...)
	f, err := os.Open(o.File)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(make([]byte, labelBytes), 0); err != nil { // also what the kernel reads ahead
		t.Fatal(err)
	}
	dir.Fail(faultdir.EIO("read", "write"))
	if err := unix.Fadvise(int(f.Fd()), labelBytes, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(make([]byte, labelBytes), 0); err != nil {
		t.Fatalf("the label is not cached, and this tests nothing: %v", err)
	}
	for _, err := range load(t, s, keysOf(0, 8)...) {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("a load meanwhile: %v", err)
		}
	}
	for _, err := range save(t, s, keysOf(0, 8)...) {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("a save meanwhile: %v", err)
		}
	}
	dir.Heal()
	there(t, mustOpen(t, o), keysOf(0, 8)...)
	if st := s.Stats(); st.CorruptBlocks > 0 || st.QuarantinedBlocks > 0 {
		t.Errorf("%+v", st)
	}
}

// Another page file may be at the name while the disk of the one that is open fails: it says nothing of that disk.
func TestAnotherFileIsNoWitness(t *testing.T) {
	dir := faultdir.New(t)
	h := newHost(t, pageservice.Options{})
	original, elsewhere := h.options(dir.Path, 40), h.options(t.TempDir(), 40)
	o := original
	o.File = filepath.Join(t.TempDir(), "pages")
	lead := func(to string) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(o.File), os.Symlink(to, o.File)); err != nil {
			t.Fatal(err)
		}
	}
	mustOpen(t, original)
	mustOpen(t, elsewhere)
	lead(original.File)
	s := mustOpen(t, o)
	stored(t, s, keysOf(0, 8)...)
	dir.Fail(faultdir.EIO("read", "write"))
	lead(elsewhere.File)
	for _, err := range load(t, s, keysOf(0, 8)...) {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("a load meanwhile: %v", err)
		}
	}
	for _, err := range save(t, s, keysOf(0, 8)...) {
		if err == nil || !strings.Contains(err.Error(), "taken its place") {
			t.Errorf("a save meanwhile: %v", err)
		}
	}
	dir.Heal()
	lead(original.File)
	there(t, mustOpen(t, o), keysOf(0, 8)...)
	if st := s.Stats(); st.CorruptBlocks > 0 || st.QuarantinedBlocks > 0 {
		t.Errorf("%+v", st)
	}
}
