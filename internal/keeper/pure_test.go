package keeper

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]Limit{
		"10TiB": {Bytes: 10 << 40}, "5GB": {Bytes: 5e9}, " 1048576 ": {Bytes: 1 << 20}, "90%": {Percent: 90}, "0.5 %": {Percent: .5}, "100%": {Percent: 100},
	} {
		got, err := ParseLimit(text)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
			continue
		}
		if again, err := ParseLimit(got.String()); err != nil || again != want {
			t.Errorf("%q: read again: %v, %v", got, again, err)
		}
	}
	for _, text := range []string{"", "0", "%", "0%", "101%", "-5%", "NaN%", "Inf%", "1KiB", "-1GiB", "16EiB", "9999999999999999999999", "ten", "5 GB GB"} {
		if got, err := ParseLimit(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"low above high":    {LowPercent: 96},
		"high above all":    {HighPercent: 101},
		"negative":          {LowPercent: -1},
		"NaN":               {LowPercent: math.NaN()},
		"negative grace":    {Grace: -1},
		"grace of a year":   {TempGrace: 365 * 24 * time.Hour},
		"both limits":       {Capacity: Limit{Bytes: mib, Percent: 50}},
		"negative capacity": {Capacity: Limit{Bytes: -mib}},
		"tiny capacity":     {Capacity: Limit{Bytes: 1}},
		"NaN capacity":      {Capacity: Limit{Percent: math.NaN()}},
	} {
		if err := o.fill(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	var o Options
	if err := o.fill(); err != nil || o.HighPercent != 95 || o.LowPercent != 90 {
		t.Errorf("%+v, %v", o, err)
	}
}

// A part of a file system that is next to nothing would have every file go.
func TestPartTooSmall(t *testing.T) {
	opts := options(t.TempDir())
	opts.Capacity = Limit{Percent: 1e-12}
	if k, err := New(opts); err == nil {
		t.Errorf("a limit of %d bytes is accepted", k.inv.Root().Limit())
		k.Close()
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"a", "a", true}, {"a", "a/b/c", true}, {"a", "ab", false}, {"a", "b/a", false}, {"a/b", "a", false}, {"a/b", "a/b/c", true},
		{"*", "x", true}, {"*/b", "a/b/c", true}, {"*/b", "a/c", false}, {"a/*.tmp", "a/x.tmp", true}, {"a/*.tmp", "a/x", false},
		{".", "x/y", true}, {"a*", "abc/d", true}, {"[", "a", false}, {"\\*", "*", true}, {"\\*", "x", false},
	} {
		if got := covers(c.pattern, c.path); got != c.want {
			t.Errorf("%q covers %q: %v", c.pattern, c.path, got)
		}
	}
	for pattern, want := range map[string]string{"a": ".", "a/b": "a", "a/b*/c": "a", "a/b/*": "a/b", "*": ".", "a/b\\*/c": "a"} {
		if got := below(pattern); got != want {
			t.Errorf("below %q: %q; want %q", pattern, got, want)
		}
	}
}

// A step of the wall clock makes nothing old that is young, and after a grace period all is
// as if there had been none.
func TestWallClock(t *testing.T) {
	for name, step := range map[string]time.Duration{"none": 0, "ahead": 1000 * time.Hour, "back": -1000 * time.Hour, "a little": 90 * time.Second, "a little back": -90 * time.Second} {
		t.Run(name, func(t *testing.T) {
			at, wall := time.Duration(0), time.Unix(1e9, 0)
			c := &wallClock{now: func() (time.Duration, time.Time) { return at, wall }}
			pass := func(d time.Duration) { at, wall = at+d, wall.Add(d) }
			c.look()
			old := wall
			pass(50 * time.Second)
			before := wall
			pass(5 * time.Second)
			wall = wall.Add(step)
			if got := c.look(); got != step {
				t.Errorf("noticed a step of %v; want %v", got, step)
			}
			pass(5 * time.Second)
			after := wall
			pass(5 * time.Second) // old is 65 s old, before is 15, after 5
			check := func(what string, mtime time.Time, want bool) {
				t.Helper()
				if left, got := c.young(mtime, time.Minute); got != want || got && (left <= 0 || left > 2*time.Minute) {
					t.Errorf("%s is young: %v for %v", what, got, left)
				}
			}
			if step.Abs() != 90*time.Second { // else old may be one from after the step
				check("what was old", old, false)
			}
			check("what was made before the step", before, true)
			check("what was made after the step", after, true)
			pass(2 * time.Minute)
			if step != -90*time.Second { // else it may be one from after the step, too
				check("what was made before the step, later", before, false)
			}
			check("what was made after the step, later", after, false)
		})
	}
	c := newWallClock()
	real := c.now
	for i := range 1000 {
		c.now = func() (time.Duration, time.Time) {
			at, wall := real()
			return at, wall.Add(time.Duration(i) * time.Hour)
		}
		c.look()
	}
	if len(c.stood) > mostSteps {
		t.Errorf("%d steps are remembered", len(c.stood))
	}
}

func encoded(t testing.TB, h heats) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, encodeHeat(&b, h, uint64(len(h.files)), func(fn func([]inventory.Heat) error) error { return fn(h.files) }))
	return b.Bytes()
}

// Uses are known again after a restart, and older by the time in between.
func TestHeatAfterRestart(t *testing.T) {
	opts := options(t.TempDir())
	opts.Capacity = Limit{Bytes: 64 * mib}
	put(t, opts.Dir, entry(1), 10000)
	w := start(t, opts)
	k1 := keyOf(t, filepath.Join(w.dir, entry(1)))
	used := func(k *Keeper) (age uint32, uses uint8) {
		f, ok := k.inv.File(k1)
		if !ok {
			t.Fatal("the file is not known")
		}
		return k.inv.Now() - f.LastUse, f.Uses
	}
	must(t, os.Chtimes(filepath.Join(w.dir, entry(1)), time.Unix(1, 0), time.Unix(1, 0)))
	w.stop()
	path := filepath.Join(opts.StateDir, heatName)
	h := readHeat(t, path)
	if len(h.files) != 1 || h.files[0].Ino != k1.Ino || len(h.totals) != 1 || h.totals[0].bytes != w.inv.Root().Bytes() {
		t.Fatalf("saved %+v", h)
	}
	h.wall = h.wall.Add(-time.Hour)
	h.files[0].Age, h.files[0].Uses, h.bonus = 77, 3, 90*time.Second
	must(t, os.WriteFile(path, encoded(t, h), 0o600))
	again := start(t, opts)
	if age, uses := used(again.Keeper); age < 77+3600 || age > 77+3600+60 || uses != 3 {
		t.Errorf("used %d times, %d s ago; want 3 times, %d s ago", uses, age, 77+3600)
	}
	if again.bonus() != 90*time.Second {
		t.Errorf("a use counts %v; it was 90 s before", again.bonus())
	}
	again.stop()
	if h := readHeat(t, path); h.bonus != 90*time.Second {
		t.Errorf("saved a bonus of %v", h.bonus)
	}
	for name, wall := range map[string]time.Time{"future": time.Now().Add(1000 * time.Hour), "long ago": time.Unix(0, 0)} {
		h.wall = wall
		must(t, os.WriteFile(path, encoded(t, h), 0o600))
		k, err := New(opts)
		must(t, err)
		must(t, k.inv.Scan(context.Background()))
		if age, uses := used(k); age > 77+uint32(mostDowntime/time.Second)+60 || uses != 3 {
			t.Errorf("%s: used %d times, %d s ago", name, uses, age)
		}
		k.Close()
	}
}

func readHeat(t *testing.T, path string) heats {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	h, err := decodeHeat(b)
	must(t, err)
	return h
}

// Before the first scan has ended, room counts as taken that was taken before; that does
// not make files go.
func TestBelieved(t *testing.T) {
	opts := options(t.TempDir())
	opts.Capacity = Limit{Bytes: 4 * mib}
	put(t, opts.Dir, entry(1), 2*mib)
	w := start(t, opts)
	w.stop()
	path := filepath.Join(opts.StateDir, heatName)
	h := readHeat(t, path)
	h.totals[0].bytes = 3 * mib
	must(t, os.WriteFile(path, encoded(t, h), 0o600))
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	root := keyOf(t, opts.Dir)
	if c := k.inv.Root().Claimed(); c != 3*mib {
		t.Errorf("%d bytes count as taken; want %d", c, 3*mib)
	}
	if refused := k.inv.Claim(root, 2*mib, false); refused == nil {
		t.Error("room was given that may be taken")
	}
	dir := filepath.Join(opts.Dir, filepath.Dir(entry(1)))
	k.Created(keyOf(t, dir), root, filepath.Base(dir), true)
	k.Created(keyOf(t, filepath.Join(opts.Dir, entry(1))), keyOf(t, dir), filepath.Base(entry(1)), false)
	k.Settle(keyOf(t, filepath.Join(opts.Dir, entry(1))), 0, 2*mib/512)
	k.makeRoom(context.Background())
	if got := files(t, opts.Dir); len(got) != 1 {
		t.Errorf("left are %q", got)
	}
	must(t, k.inv.Scan(context.Background()))
	if got := files(t, opts.Dir); len(got) != 1 || k.inv.Root().Claimed() != k.inv.Root().Bytes() {
		t.Errorf("left are %q, %d bytes claimed, %d taken", got, k.inv.Root().Claimed(), k.inv.Root().Bytes())
	}
}

// Where nobody remembers what was taken, and there is little, a writer waits for no scan, however
// much others have in the file system.
func TestNothingToRemember(t *testing.T) {
	opts := options(t.TempDir())
	opts.Capacity = Limit{Bytes: 4 * mib}
	put(t, opts.Dir, entry(1), mib)
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	key := keyOf(t, filepath.Join(opts.Dir, entry(1)))
	if err := k.Reserve(key, 2*mib, time.Time{}, nil); err != nil {
		t.Errorf("2 MiB beside 1 of 4: %v", err)
	}
	k.Settle(key, 2*mib, -1)
}

// Where nobody remembers what was taken, and there may be much, that is as much as the file
// system holds. Entries can be made meanwhile.
func TestBelievedWithoutMemory(t *testing.T) {
	opts := options(t.TempDir())
	opts.Capacity = Limit{Bytes: 4 * mib}
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	must(t, k.inv.Close())
	k.inv, err = inventory.New(opts.Dir, inventory.Options{Skip: opts.Skip})
	must(t, err)
	must(t, k.setCapacity())
	must(t, k.believe(0))
	var st unix.Statfs_t
	must(t, unix.Statfs(opts.Dir, &st))
	want := min(int64(st.Blocks-st.Bfree)*st.Bsize, 4*mib)
	if c := k.inv.Root().Claimed(); c < want-mib || c > 4*mib {
		t.Errorf("%d bytes count as taken; want %d", c, want)
	}
	root := keyOf(t, opts.Dir)
	if err := k.Reserve(root, 16<<10, time.Time{}, nil); err != nil {
		t.Errorf("an entry before the first scan: %v", err)
	}
	k.Settle(root, 16<<10, -1)
	must(t, k.inv.Scan(context.Background()))
	if c, b := k.inv.Root().Claimed(), k.inv.Root().Bytes(); c != b {
		t.Errorf("%d claimed of %d after the scan", c, b)
	}
}

// Where others leave less of the file system than the capacity, the limit is what there is.
func TestCapacityBeyondTheDisk(t *testing.T) {
	opts := options(t.TempDir())
	opts.Capacity = Limit{Bytes: math.MaxInt64 / 4}
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	must(t, k.inv.Scan(context.Background()))
	must(t, k.setCapacity())
	var st unix.Statfs_t
	must(t, unix.Statfs(opts.Dir, &st))
	free := int64(st.Bavail) * st.Bsize
	if limit := k.inv.Root().Limit(); limit > free+64*mib || limit < 1 {
		t.Errorf("the limit is %d with %d free", limit, free)
	}
	k.Capacity = Limit{Percent: 50}
	must(t, k.setCapacity())
	if limit := k.inv.Root().Limit(); limit > int64(st.Blocks)*st.Bsize/2 {
		t.Errorf("half of %d blocks is %d", st.Blocks, limit)
	}
}

// No damage to a byte of the file is taken for heat, nor is a shorter file; the daemon
// starts without it.
func TestDamagedHeat(t *testing.T) {
	want := heats{
		wall: time.Unix(1700000000, 0), root: 2, bonus: 150 * time.Second, totals: []total{{2, 1 << 40}, {99, 0}},
		files:  []inventory.Heat{{Ino: 1, Age: 2, Uses: 3}, {Ino: math.MaxUint64, Age: math.MaxUint32, Uses: 255}},
		ghosts: []byte{1, 2, 3},
	}
	good := encoded(t, want)
	if got, err := decodeHeat(good); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range good {
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := bytes.Clone(good)
			bad[i] ^= flip
			if got, err := decodeHeat(bad); !errors.Is(err, errHeat) {
				t.Fatalf("byte %d ^ %#x: %+v, %v", i, flip, got, err)
			}
		}
		if got, err := decodeHeat(good[:i]); !errors.Is(err, errHeat) {
			t.Fatalf("%d bytes: %+v, %v", i, got, err)
		}
	}
	opts := options(t.TempDir())
	must(t, os.MkdirAll(opts.StateDir, 0o700))
	must(t, os.WriteFile(filepath.Join(opts.StateDir, heatName), good[:30], 0o600))
	start(t, opts).stop()
	if h := readHeat(t, filepath.Join(opts.StateDir, heatName)); len(h.files) != 0 {
		t.Errorf("%+v", h)
	}
}

// Files may come and go while the heat is written.
func TestHeatWhileFilesChange(t *testing.T) {
	all := []inventory.Heat{{Ino: 1}, {Ino: 2}}
	each := func(fn func([]inventory.Heat) error) error { return fn(all) }
	for _, count := range []uint64{0, 1, 2, 5} {
		var b bytes.Buffer
		must(t, encodeHeat(&b, heats{wall: time.Unix(5, 0)}, count, each))
		h, err := decodeHeat(b.Bytes())
		if err != nil || uint64(len(h.files)) != count {
			t.Errorf("%d files: %+v, %v", count, h, err)
		}
	}
}

func FuzzHeat(f *testing.F) {
	f.Add(encoded(f, heats{wall: time.Unix(1700000000, 0), root: 2, bonus: 75 * time.Second, totals: []total{{2, 5}}, files: []inventory.Heat{{Ino: 1, Age: 2, Uses: 3}}, ghosts: []byte{4, 5}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeat(b)
		if err != nil {
			if !errors.Is(err, errHeat) {
				t.Fatal(err)
			}
			return
		}
		if again := encoded(t, h); string(b[:8]) == heatMagic && !bytes.Equal(again, b) {
			t.Fatalf("%x is written as %x", b, again)
		}
	})
}

func FuzzRules(f *testing.F) {
	f.Add([]byte(`{"version":1,"quotas":[{"path":"\"a\"","bytes":1048576}],"pins":["\"b/*\""],"ttls":[{"pattern":"\"c\\xff\"","seconds":5}]}`))
	f.Add([]byte(`{"version":2,"pins":["\"a\""],"pins_by":[{"pattern":"\".\"","owner":"lmcache"},{"pattern":"\"b\"","model":"\"m\\xff\""}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRules(b)
		if err != nil {
			return
		}
		text, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeRules(text)
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%q is written as %q: %v", b, text, err)
		}
	})
}

func FuzzCovers(f *testing.F) {
	f.Add("a/*", "a/b/c")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		if checkPattern(pattern) != nil {
			return
		}
		covers(pattern, path)
		if top := below(pattern); top != "." && covers(pattern, path) && !covers(globEscape(top), path) {
			t.Fatalf("%q covers %q, which is not below %q", pattern, path, top)
		}
	})
}
