package keeper

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// use reads a file as a client does.
func (w *world) use(rel string) {
	w.Read(keyOf(w.t, filepath.Join(w.dir, rel)))
}

// lose has a file leave.
func (w *world) lose(rel string) {
	w.t.Helper()
	dir, name := filepath.Dir(rel), filepath.Base(rel)
	d, err := w.inv.Find(dir)
	must(w.t, err)
	info, err := w.inv.Stat(d, name)
	must(w.t, err)
	if !w.unlink(dir, name, info, nil) {
		w.t.Fatalf("%s stays", rel)
	}
}

// usesOf returns how often a file was used beyond the first time.
func (w *world) usesOf(rel string) uint8 {
	w.t.Helper()
	f, ok := w.inv.File(keyOf(w.t, filepath.Join(w.dir, rel)))
	if !ok {
		w.t.Fatalf("no record of %s", rel)
	}
	return f.Uses
}

// clocked returns the options of a keeper whose clock of uses the test moves. By the other one
// its files stay young.
func clocked(dir string) (opts Options, later func(time.Duration)) {
	opts = options(dir)
	opts.Grace = time.Hour
	var now atomic.Int64
	opts.elapsed = func() time.Duration { return time.Duration(now.Load()) }
	return opts, func(d time.Duration) { now.Add(int64(d)) }
}

// The curve is about stores and reads: of files of known layouts alone.
func TestCurveOfUses(t *testing.T) {
	opts, later := clocked(t.TempDir())
	opts.Capacity = Limit{Bytes: 64 * mib}
	w := start(t, opts)
	if points := w.Curve(); points != nil {
		t.Errorf("before the first use: %v", points)
	}
	must(t, w.store("notes.txt", 40960, soon()))
	const blocks = 10
	for i := range blocks {
		must(t, w.store(entry(i), 40960, soon()))
	}
	for range 3 {
		later(time.Second)
		for i := range blocks {
			w.use(entry(i))
		}
		w.use("notes.txt")
	}
	if served, uses := w.Served(); uses != 4*blocks || math.Abs(served-0.75) > 1e-9 {
		t.Errorf("%v of %v uses were served; want three quarters of %d", served, uses, 4*blocks)
	}
	points := w.Curve()
	if len(points) != 13 || points[0].CapacityBytes != 8*mib || points[6].CapacityBytes != 64*mib || points[12].CapacityBytes != 512*mib {
		t.Fatalf("%v", points)
	}
	for _, p := range points {
		if math.Abs(p.HitRatio-0.75) > 1e-9 { // ten blocks fit into an eighth
			t.Errorf("%v", p)
		}
	}
}

// A store of what has left is a miss, and its earlier uses count; that something is removed is no use.
func TestReturnIsAMissAndCounts(t *testing.T) {
	opts, later := clocked(t.TempDir())
	w := start(t, opts)
	uses := func() uint8 { return w.usesOf(entry(1)) }
	must(t, w.store(entry(1), 40960, soon()))
	later(time.Second)
	w.use(entry(1))
	if n := uses(); n != 1 {
		t.Fatalf("%d uses beyond the first", n)
	}
	later(time.Second)
	w.lose(entry(1))
	later(time.Second)
	must(t, w.store(entry(1), 40960, soon()))
	if n := uses(); n != 2 {
		t.Errorf("%d uses beyond the first after its return; want 2", n)
	}
	if served, uses := w.Served(); uses != 3 || math.Abs(served-1./3) > 1e-9 {
		t.Errorf("%v of %v uses were served; want one of three", served, uses)
	}
}

// An entry of two files, both of which an engine reads, is used once.
func TestUseOfAnEntryOfTwoFiles(t *testing.T) {
	opts, later := clocked(t.TempDir())
	w := start(t, opts)
	const side = gdsName + ".metadata"
	must(t, os.MkdirAll(filepath.Join(opts.Dir, filepath.Dir(filepath.Dir(gdsName))), 0o700))
	must(t, w.inv.Scan(t.Context()))
	must(t, w.store(gdsName, 40960, soon()))
	must(t, w.store(side, 4096, soon()))
	for range 3 {
		later(time.Second)
		w.use(side)
		w.use(gdsName)
	}
	if served, uses := w.Served(); uses != 4 || math.Abs(served-0.75) > 1e-9 {
		t.Errorf("%v of %v uses were served; want three of 4", served, uses)
	}
	if uses := w.usesOf(gdsName); uses != 3 {
		t.Errorf("%d uses beyond the first; want 3", uses)
	}
	w.lose(side)
	w.lose(gdsName)
	left := 0
	for _, name := range []string{gdsName, side} {
		later(time.Second)
		must(t, w.store(name, 4096, soon()))
		if w.usesOf(name) > 0 {
			left++
		}
	}
	if left != 1 {
		t.Errorf("%d files of one entry are remembered after they left", left)
	}
}

// What has left is remembered beyond a restart, also after a crash that follows a save; a heat file of
// the version before, which has none of it, is still read, and damage to it loses no heat.
func TestGhostsAfterRestart(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, path string)
		uses   uint8 // of the file that returns, beyond its first
	}{
		"as it was": {func(*testing.T, string) {}, 2},
		"version 2": {func(t *testing.T, path string) {
			h := readHeat(t, path)
			h.ghosts = nil
			b := encoded(t, h)
			b = b[:len(b)-8-ghostsBytes]
			copy(b, heatMagic2)
			must(t, os.WriteFile(path, binary.LittleEndian.AppendUint64(b, xxh3.Hash(b)), 0o600))
		}, 0},
		"damaged": {func(t *testing.T, path string) {
			h := readHeat(t, path)
			h.ghosts = h.ghosts[:len(h.ghosts)-1]
			must(t, os.WriteFile(path, encoded(t, h), 0o600))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			opts, later := clocked(t.TempDir())
			w := start(t, opts)
			must(t, w.store(entry(1), 40960, soon()))
			must(t, w.store(entry(2), 40960, soon()))
			later(time.Second)
			w.use(entry(1))
			w.use(entry(2))
			w.lose(entry(1))
			must(t, w.Save())
			path := filepath.Join(opts.StateDir, heatName)
			saved, err := os.ReadFile(path)
			must(t, err)
			w.stop()
			must(t, os.WriteFile(path, saved, 0o600)) // as if it had been killed after the save
			c.change(t, path)

			later(time.Second)
			w = start(t, opts)
			eventually(t, "the scan", w.inv.Scanned)
			must(t, w.store(entry(1), 40960, soon()))
			if uses := w.usesOf(entry(1)); uses != c.uses {
				t.Errorf("%d uses beyond the first after a return; want %d", uses, c.uses)
			}
			if uses := w.usesOf(entry(2)); uses != 1 {
				t.Errorf("%d uses beyond the first of what has stayed; want 1", uses)
			}
		})
	}
}

// BenchmarkUse reads half a million files, each once a second, with and without a learner. Of
// few files all are followed.
func BenchmarkUse(b *testing.B) {
	for _, files := range []int{5000, 500_000} {
		for _, learns := range []bool{false, true} {
			b.Run(fmt.Sprintf("files=%d/learns=%v", files, learns), func(b *testing.B) {
				now := time.Duration(0)
				opts := inventory.Options{Elapsed: func() time.Duration { return now }}
				if learns {
					l := newLearner()
					l.tuner.SetCapacity(int64(files) / 2 * blockBytes)
					opts.Uses = l
				}
				inv, err := inventory.New(b.TempDir(), opts)
				must(b, err)
				defer inv.Close()
				root := inv.KeyOf(inv.Root())
				key := func(i int) FileKey { return FileKey{Dev: root.Dev, Ino: uint64(1<<50 + i%files)} }
				for i := range files {
					inv.Created(key(i), root, fmt.Sprint(i), false)
					inv.Opened(key(i), root, fmt.Sprint(i))
					inv.Closed(key(i), blockBytes/512)
				}
				b.ResetTimer()
				for i := range b.N {
					if i%files == 0 {
						now += time.Second
					}
					inv.Read(key(i * 7919))
				}
			})
		}
	}
}
