package keeper

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// A writer on a host whose clock is an hour behind, or two ahead, keeps what it has not finished for as long as it changes
// it, and for the grace period after that; then it goes.
func TestWritersOnHostsWithOtherClocks(t *testing.T) {
	for name, skew := range map[string]time.Duration{"behind": -time.Hour, "ahead": 2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			opts := silentOptions(t.TempDir(), 64*mib)
			var at time.Duration
			opts.elapsed = func() time.Duration { return at }
			k, err := New(opts)
			must(t, err)
			defer k.Close()
			k.watched.now = func() time.Duration { return at }
			unfinished := []string{"a0/a0000000000000000000000000000003.tmp", entry(1)}
			write := func(rel string, size int) {
				put(t, opts.Dir, rel, size)
				stamp := time.Now().Add(skew + at)
				must(t, os.Chtimes(filepath.Join(opts.Dir, rel), stamp, stamp))
			}
			write(unfinished[0], 4096)
			write(unfinished[1], 0) // shorter than a whole one
			look := func(rels ...string) {
				t.Helper()
				must(t, k.inv.Scan(t.Context()))
				k.reap(t.Context())
				k.reapBroken(t.Context(), k.inv.Below(k.inv.Root()))
				for _, rel := range rels {
					if _, err := os.Stat(filepath.Join(opts.Dir, rel)); err != nil {
						t.Errorf("%v after the first look: %v", at, err)
					}
				}
			}
			look(unfinished...)
			at += 50 * time.Second
			write(unfinished[0], 8192)
			look(unfinished...)
			at += 50 * time.Second
			look(unfinished[0])
			if _, err := os.Stat(filepath.Join(opts.Dir, entry(1))); !os.IsNotExist(err) {
				t.Errorf("one that was seen unchanged for longer than its grace period: %v", err)
			}
			at += 20 * time.Second
			look()
			if left := files(t, opts.Dir); len(left) != 0 {
				t.Errorf("%q are left", left)
			}
			if n := len(k.watched.all); n != 0 {
				t.Errorf("%d files that are gone are still watched", n)
			}
		})
	}
}

// A single pass cannot see whether a file changes: it goes by a difference that no clocks have.
func TestPassLeavesUnfinished(t *testing.T) {
	opts := silentOptions(t.TempDir(), 64*mib)
	old(t, opts.Dir, "a0/a0000000000000000000000000000003.tmp", mib, 2*time.Hour)
	old(t, opts.Dir, entry(1), 0, 2*time.Hour)
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	_, err = k.Pass(t.Context(), false, func(e Entry) { t.Errorf("%v goes: %v", e.Path, e.Why) })
	must(t, err)
}

// What is watched is bounded: what finds no place counts as just seen until others have gone.
func TestWatchedIsBounded(t *testing.T) {
	at := time.Second
	w := newWatched(func() time.Duration { return at }, time.Hour)
	info := func(ino uint64) *inventory.Info { return &inventory.Info{Key: FileKey{Ino: ino}} }
	for ino := range uint64(mostWatched + 5) {
		w.unchanged(info(ino))
	}
	at += 10 * time.Minute
	if d := w.unchanged(info(0)); d != 10*time.Minute {
		t.Errorf("seen for %v", d)
	}
	if d := w.unchanged(info(mostWatched)); d != 0 || len(w.all) != mostWatched {
		t.Errorf("seen for %v, of %d", d, len(w.all))
	}
	w.gone(FileKey{Ino: 1})
	w.unchanged(info(mostWatched))
	at += time.Minute
	if d := w.unchanged(info(mostWatched)); d != time.Minute {
		t.Errorf("in the place of one that is gone: seen for %v", d)
	}
	at += 55 * time.Minute // nobody has looked at the others for longer than an hour
	w.unchanged(info(mostWatched + 1))
	if len(w.all) > 3 {
		t.Errorf("%d are remembered", len(w.all))
	}
}

// An entry of a host whose clock differs, which has come since the scan before, is left alone for the grace period, whatever
// its mtime says. One that was there from the start, or has come with the right time, goes by its mtime.
func TestEntriesOfHostsWithOtherClocks(t *testing.T) {
	opts := silentOptions(t.TempDir(), 64*mib)
	opts.Silent.RefreshEvery = time.Second
	var at time.Duration
	opts.elapsed = func() time.Duration { return at }
	old(t, opts.Dir, entry(1), 4096, time.Hour)
	old(t, opts.Dir, entry(2)+".tmp", 4096, time.Hour)
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	must(t, k.inv.Scan(t.Context()))
	old(t, opts.Dir, entry(3), 4096, time.Hour)
	old(t, opts.Dir, entry(4), 4096, -2*time.Hour)
	must(t, os.Rename(filepath.Join(opts.Dir, entry(2)+".tmp"), filepath.Join(opts.Dir, entry(2))))
	refresh := func() {
		t.Helper()
		_, err := k.inv.Refresh(t.Context())
		must(t, err)
	}
	young := func(want ...bool) {
		t.Helper()
		for i, want := range want {
			about, err := k.Describe(entry(i + 1))
			must(t, err)
			if about.File.MayGo == want {
				t.Errorf("after %v, entry %d may go: %v, %s", at, i+1, about.File.MayGo, about.File.Why)
			}
		}
	}
	refresh()
	young(false, true, true, true)
	at += 50 * time.Second
	refresh()
	young(false, true, true, true)
	at += 20 * time.Second
	refresh()
	young(false, false, false, false)
}

// A file of a host whose clock differs is new for the grace period in effect, not for that of the start.
func TestNewForAChangedGracePeriod(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "before", 1)
	at := time.Duration(0)
	opts := options(dir)
	opts.elapsed = func() time.Duration { return at }
	opts.Grace, opts.Silent = time.Minute, &Silent{}
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	must(t, k.inv.Scan(t.Context()))
	put(t, dir, "after", 1)
	old := time.Now().Add(-24 * time.Hour)
	must(t, os.Chtimes(filepath.Join(dir, "after"), old, old))
	must(t, k.SetLimits(Limits{HighPercent: k.HighPercent, LowPercent: k.LowPercent, Grace: 3 * time.Hour}))
	for _, at = range []time.Duration{0, 2 * time.Hour, 4 * time.Hour} {
		if _, err := k.inv.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, is := k.inv.NewSince(keyOf(t, filepath.Join(dir, "after"))); is != (at < 3*time.Hour) {
			t.Errorf("after %v: new: %v", at, is)
		}
	}
}
