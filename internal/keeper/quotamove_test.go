package keeper

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// within fails unless something that must not wait ends.
func within(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s waits", what)
	}
}

// A move into a directory from which nothing may go is refused at once, though it, and another, have set room aside there.
func TestMoveHopesForNothing(t *testing.T) {
	opts := options(t.TempDir())
	opts.Grace = time.Minute
	old := time.Now().Add(-time.Hour)
	for _, rel := range []string{entry(1), entry(17), "out/file"} {
		put(t, opts.Dir, rel, 3*mib)
		must(t, os.Chtimes(filepath.Join(opts.Dir, rel), old, old))
	}
	w := start(t, opts)
	must(t, w.AddPin(Pin{Pattern: filepath.Dir(entry(1))}))
	must(t, w.SetQuota(filepath.Dir(entry(1)), 8*mib))
	to, busy := keyOf(t, filepath.Join(w.dir, filepath.Dir(entry(1)))), keyOf(t, filepath.Join(w.dir, entry(17)))
	w.Opened(busy, to, filepath.Base(entry(17)))
	must(t, w.Reserve(to, 16<<10, soon(), nil))
	must(t, w.Reserve(busy, 64<<10, soon(), nil))
	within(t, "a move", func() {
		_, err := w.Move(keyOf(t, filepath.Join(w.dir, "out/file")), to, "new", FileKey{}, time.Now().Add(time.Hour), nil)
		if !errors.Is(err, unix.EDQUOT) {
			t.Errorf("%v; want EDQUOT", err)
		}
	})
}

// While rules are saved to a disk that hangs, what eviction asks of them is answered; in the end they are saved as they are.
func TestEvictionDuringSave(t *testing.T) {
	d := faultdir.New(t)
	put(t, d.Beneath, "up/a/file", 1)
	put(t, d.Beneath, "b/file", 1)
	opts := options(d.Path)
	k, err := New(opts)
	must(t, err)
	defer func() { must(t, k.Close()) }()
	must(t, k.inv.Scan(t.Context()))
	must(t, k.SetQuota("up/a", 2*mib))
	must(t, k.AddPin(Pin{Pattern: "b"}))
	root, up := keyOf(t, d.Path), keyOf(t, filepath.Join(d.Path, "up"))
	hangs := d.Hang(func(c faultdir.Call) bool { return c.Op == "fsync" })
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		end, err := k.Move(up, root, "down", FileKey{}, soon(), nil)
		if err != nil {
			t.Error(err)
			return
		}
		end()
	}()
	defer func() { <-moved }()
	defer d.Heal()
	select {
	case <-hangs:
	case <-time.After(time.Minute):
		t.Fatal("a move saves nothing")
	}
	within(t, "eviction", func() {
		if !k.pinned("b/file") || k.pinned("up/a/file") || len(k.limited()) != 2 || len(k.TTLs()) != 0 || len(k.Quotas()) != 1 {
			t.Error("rules are not what they were")
		}
	})
	later := make(chan error, 1)
	go func() { later <- k.AddPin(Pin{Pattern: "c"}) }()
	eventually(t, "the end of what hangs", func() bool {
		d.Heal()
		return len(later) == 1
	})
	must(t, <-later)
	<-moved
	saved, err := readRules(opts.StateDir)
	if want := []Pin{{Pattern: "b"}, {Pattern: "c"}}; err != nil || !slices.Equal(saved.pins, want) {
		t.Errorf("%v are saved, %v; want %v", saved.pins, err, want)
	}
}

// The end of a move takes back what it has said itself, not what another one says that is under way.
func TestOverlappingMoves(t *testing.T) {
	opts := options(t.TempDir())
	put(t, opts.Dir, "up/a/file", 1)
	k, err := New(opts)
	must(t, err)
	defer func() { must(t, k.Close()) }()
	must(t, k.inv.Scan(t.Context()))
	must(t, k.SetQuota("up/a", 2*mib))
	root, up, a := keyOf(t, opts.Dir), keyOf(t, filepath.Join(opts.Dir, "up")), keyOf(t, filepath.Join(opts.Dir, "up/a"))
	first := k.quotasMove(a, root, "a")
	second := k.quotasMove(up, root, "down")
	first()
	if q := k.rules.quotas[0]; q.moving != "down/a" || q.inode != a.Ino {
		t.Errorf("%+v; it is moving to down/a", q)
	}
	second()
	if q := k.rules.quotas[0]; q.moving != "" || q.inode != 0 {
		t.Errorf("%+v; it moves no more", q)
	}
}
