package keeper

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// failing returns a scanned keeper of a directory with n blocks of 64 KiB whose calls can be made to fail.
func failing(t *testing.T, n int) (*faultdir.Dir, *Keeper) {
	t.Helper()
	d := faultdir.New(t)
	for i := range n {
		put(t, d.Beneath, entry(i), 64<<10)
	}
	k, err := New(options(d.Path))
	must(t, err)
	t.Cleanup(func() {
		d.Heal()
		must(t, k.Close())
	})
	must(t, k.inv.Scan(t.Context()))
	if k.inv.Root().Files() != int64(n) {
		t.Fatalf("%d of %d files are known", k.inv.Root().Files(), n)
	}
	return d, k
}

// eioFor returns EIO for looking up a name.
func eioFor(name string) func(faultdir.Call) syscall.Errno {
	return func(c faultdir.Call) syscall.Errno {
		if c.Op == "lookup" && c.Name == name {
			return syscall.EIO
		}
		return 0
	}
}

// "kv3fs du" asks nothing of the file system.
func TestUsageReadsNothing(t *testing.T) {
	d, k := failing(t, 8)
	d.Fail(func(c faultdir.Call) syscall.Errno {
		t.Errorf("%+v", c)
		return syscall.EIO
	})
	n := int64(0)
	must(t, k.Usage(t.Context(), ".", 1, func(u Usage) error { n = max(n, u.Files); return nil }))
	groups, err := k.Groups(".")
	if err != nil || len(groups) != 1 || groups[0].Files != 8 || n != 8 {
		t.Errorf("%d files; %+v, %v", n, groups, err)
	}
	d.Heal()
}

// A file that cannot be looked at is neither removed nor forgotten: it takes what it took.
func TestUnreadableFileCounts(t *testing.T) {
	d, k := failing(t, 8)
	bad := path.Base(entry(3))
	d.Fail(eioFor(bad))
	k.shrink(t.Context(), k.inv.Root(), 0)
	if left := blocksBeneath(t, d); !slices.Equal(left, []string{entry(3)}) {
		t.Errorf("%q are left", left)
	}
	if n, b := k.inv.Root().Files(), k.inv.Root().Bytes(); n != 1 || b < 64<<10 {
		t.Errorf("%d files of %d bytes are known; the one that cannot be read is there", n, b)
	}
	must(t, k.inv.Scan(t.Context()))
	if n := k.inv.Root().Files(); n != 1 || k.Stats().Unread == 0 {
		t.Errorf("after a scan %d files are known, %d unreadable", n, k.Stats().Unread)
	}
	d.Heal()
	k.shrink(t.Context(), k.inv.Root(), 0)
	if left := blocksBeneath(t, d); len(left) > 0 || k.inv.Root().Files() != 0 {
		t.Errorf("%q are left, %d known", left, k.inv.Root().Files())
	}
}

// What was removed beside a file that cannot be looked at is dropped by the next scan.
func TestRemovedBesideUnreadable(t *testing.T) {
	d, k := failing(t, 33) // three in the first directory
	must(t, os.Remove(filepath.Join(d.Beneath, entry(16))))
	d.Fail(eioFor(path.Base(entry(32))))
	must(t, k.inv.Scan(t.Context()))
	if n := k.inv.Root().Files(); n != 32 {
		t.Errorf("%d files are known of 32", n)
	}
}

// A disk that lists, opens, or removes nothing changes nothing that is known, and the search for victims ends.
func TestFailingDisk(t *testing.T) {
	for _, op := range []string{"unlink", "opendir", "readdir", "getattr", "lookup"} {
		t.Run(op, func(t *testing.T) {
			d, k := failing(t, 8)
			before := k.inv.Root().Bytes()
			d.Fail(faultdir.EIO(op))
			out := k.shrink(t.Context(), k.inv.Root(), 0)
			k.expire(t.Context())
			k.reapBroken(t.Context(), k.inv.Below(k.inv.Root()))
			if op != "unlink" {
				must(t, k.inv.Scan(t.Context()))
			}
			if n, b := k.inv.Root().Files(), k.inv.Root().Bytes(); n != 8 || b != before || !out.exhausted {
				t.Errorf("%d files of %d bytes are known, were 8 of %d; %+v", n, b, before, out)
			}
			d.Heal()
			if n := len(blocksBeneath(t, d)); n != 8 {
				t.Errorf("%d of 8 files are left", n)
			}
			k.shrink(t.Context(), k.inv.Root(), 0)
			if n := len(blocksBeneath(t, d)); n != 0 || k.inv.Root().Files() != 0 {
				t.Errorf("%d files are left on a disk that works again", n)
			}
		})
	}
}

// A directory that the first scan cannot read is read again soon, not in an hour.
func TestUnreadAtFirst(t *testing.T) {
	d := faultdir.New(t)
	for i := range 8 {
		put(t, d.Beneath, entry(i), 64<<10)
	}
	opts := options(d.Path)
	opts.Rescan = time.Hour
	k, err := New(opts)
	must(t, err)
	k.retry = 10 * time.Millisecond
	d.Fail(eioFor(path.Dir(entry(5))))
	w := startWith(t, opts, k)
	if n := k.inv.Root().Files(); n != 7 {
		t.Fatalf("%d files are known, and one directory cannot be read", n)
	}
	d.Heal()
	eventually(t, "the file that could not be read", func() bool { return k.inv.Root().Files() == 8 })
	w.stop()
}

// Rules that cannot be saved do not hold, those that cannot be read are an error of the start, and uses that can be
// neither saved nor read are a loss that the log tells of.
func TestStateFails(t *testing.T) {
	d := faultdir.New(t)
	put(t, d.Beneath, entry(1), 64<<10)
	opts := options(d.Path)
	k, err := New(opts)
	must(t, err)
	defer func() { must(t, k.Close()) }()
	must(t, k.inv.Scan(t.Context()))
	must(t, k.SetQuota("a1", mib))
	must(t, k.AddPin(Pin{Pattern: "a1"}))
	for _, op := range []string{"create", "write", "fsync", "rename", "lookup"} {
		d.Fail(faultdir.EIO(op))
		if err := k.SetQuota("a1", 2*mib); !errors.Is(err, unix.EIO) {
			t.Errorf("%s fails: a quota is set, %v", op, err)
		}
		if err := k.RemovePin(Pin{Pattern: "a1"}); !errors.Is(err, unix.EIO) {
			t.Errorf("%s fails: a pin ends, %v", op, err)
		}
		if err := k.saveHeat(); !errors.Is(err, unix.EIO) {
			t.Errorf("%s fails: uses are saved, %v", op, err)
		}
		d.Heal()
		if q := k.Quotas(); len(q) != 1 || q[0].Bytes != mib || !k.pinned(entry(1)) {
			t.Errorf("%s failed: %+v", op, q)
		}
	}
	must(t, k.saveHeat())
	left, err := filepath.Glob(filepath.Join(d.Beneath, ".kv3fs", "*"))
	must(t, err)
	if len(left) != 2 {
		t.Errorf("in the state directory are %q", left)
	}
	d.Fail(faultdir.EIO("read"))
	if again, err := New(opts); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), rulesName) {
		t.Errorf("a start without rules that are there: %v, %v", again, err)
	}
	d.Heal()
	must(t, os.Remove(filepath.Join(d.Beneath, ".kv3fs", rulesName)))
	d.Fail(faultdir.EIO("read"))
	again, err := New(opts)
	must(t, err)
	d.Heal()
	must(t, again.Close())
}

// A keeper at work goes on while the disk fails, and ends.
func TestRunOverFailingDisk(t *testing.T) {
	d := faultdir.New(t)
	for i := range 40 {
		put(t, d.Beneath, entry(i), 64<<10)
	}
	opts := options(d.Path)
	opts.Capacity, opts.SaveEvery = Limit{Bytes: 4 * mib}, time.Millisecond
	k, err := New(opts)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	eventually(t, "the first scan", func() bool { return k.inv.Scanned() })
	all := func(faultdir.Call) syscall.Errno { return syscall.EIO }
	d.Fail(all)
	must(t, k.inv.Scan(t.Context()))
	k.inv.Root().SetLimit(mib)
	k.kickNow()
	before := k.Stats().Evicted
	k.look()
	d.Heal()
	eventually(t, "removals", func() bool {
		k.inv.Root().SetLimit(mib)
		k.kickNow()
		return k.Stats().Evicted > before
	})
	d.Fail(all)
	cancel()
	if err := <-done; !errors.Is(err, unix.EIO) {
		t.Errorf("the last uses are saved on a disk that fails: %v", err)
	}
	d.Heal()
	must(t, k.Close())
}

func blocksBeneath(t *testing.T, d *faultdir.Dir) (left []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(d.Beneath, "a?/*"))
	must(t, err)
	for _, path := range all {
		rel, err := filepath.Rel(d.Beneath, path)
		must(t, err)
		left = append(left, rel)
	}
	return left
}

// While a look for the directory of a quota hangs, rules are read and changed, and writers are served.
func TestQuotaWhoseDirectoryHangs(t *testing.T) {
	d, k := failing(t, 2)
	must(t, os.Mkdir(filepath.Join(d.Beneath, "later"), 0o700))
	must(t, k.SetQuota("later", 5*mib))
	key := keyOf(t, filepath.Join(d.Path, "later"))
	must(t, os.Remove(filepath.Join(d.Beneath, "later")))
	k.Removed(key, k.inv.KeyOf(k.inv.Root()), "later", true)
	k.findQuotas()
	must(t, os.Mkdir(filepath.Join(d.Beneath, "later"), 0o700))
	hung := d.Hang(func(c faultdir.Call) bool { return c.Op == "lookup" && c.Name == "later" })
	looked, others := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looked)
		k.findQuotas()
	}()
	<-hung
	go func() {
		defer close(others)
		if len(k.Quotas()) != 1 || k.pinned(entry(0)) {
			t.Error("another quota, or a pin")
		}
		if err := k.AddPin(Pin{Pattern: "pinned"}); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-others:
	case <-time.After(time.Minute):
		t.Error("they wait for the disk")
	}
	d.Heal()
	<-looked
	<-others
	if at, err := k.inv.Find("later"); err != nil || at.Limit() != 5*mib {
		t.Errorf("the directory has no quota: %v", err)
	}
}
