package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }

const (
	mib = 1 << 20

	// gdsName is the data of a chunk of LMCache's GDS backend.
	gdsName = "66/63/m%402%401%4017ac16e7b5ac22%40half.kvcache.safetensors"
)

// entry returns the path of the n-th block: its directory is the beginning of its name.
func entry(n int) string { return fmt.Sprintf("a%x/a%x%030x", n%16, n%16, n) }

// world is a keeper at work on a directory, and what the file tree would do there.
type world struct {
	t   testing.TB
	dir string
	*Keeper
	stop func()
}

// options are those of tests: files are old enough at once.
func options(dir string) Options {
	return Options{
		Dir: dir, StateDir: filepath.Join(dir, ".kv3fs"), Skip: ".kv3fs", Grace: time.Nanosecond, TempGrace: time.Nanosecond,
		Rescan: -1, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// start runs a keeper, whose first scan has ended.
func start(t testing.TB, opts Options) *world {
	t.Helper()
	k, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return startWith(t, opts, k)
}

// startWith is start for a keeper that is there.
func startWith(t testing.TB, opts Options, k *Keeper) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	w := &world{t: t, dir: opts.Dir, Keeper: k}
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.stop)
	eventually(t, "the first scan", func() bool { return k.inv.Scanned() })
	return w
}

// eventually waits for something that other goroutines do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s has not come in a minute", what)
		}
	}
}

func keyOf(t testing.TB, path string) FileKey {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return FileKey{Dev: uint64(unix.Major(st.Dev))<<32 | uint64(unix.Minor(st.Dev)), Ino: st.Ino}
}

// put makes a file without an event.
func put(t testing.TB, dir, rel string, size int) {
	t.Helper()
	path := filepath.Join(dir, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
}

// store writes a file as a client does, in parts of a quarter, and returns the first error.
func (w *world) store(rel string, size int, deadline time.Time) error {
	dir, name := filepath.Split(filepath.Join(w.dir, rel))
	if os.Mkdir(dir, 0o700) == nil {
		w.Created(keyOf(w.t, dir), keyOf(w.t, filepath.Dir(filepath.Clean(dir))), filepath.Base(dir), true)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	k, dk := keyOf(w.t, f.Name()), keyOf(w.t, dir)
	// In use before the keeper knows it: the first look for what writers did not complete may not be over, and no file is
	// too young for it.
	w.Opened(k, dk, name)
	w.Created(k, dk, name, false)
	defer func() { w.Closed(k, blocksOf(f)) }()
	part := make([]byte, size/4)
	for i := range 4 {
		if err := w.Reserve(k, int64(len(part)), deadline, nil); err != nil {
			return err
		}
		_, err := f.WriteAt(part, int64(i*len(part)))
		w.Settle(k, int64(len(part)), blocksOf(f))
		if err != nil {
			return err
		}
	}
	return nil
}

func blocksOf(f *os.File) int64 {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return -1
	}
	return st.Blocks
}

// files returns the paths of all files, but for the keeper's own.
func files(t testing.TB, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".kv3fs" {
			return filepath.SkipDir
		}
		if rel, _ := filepath.Rel(dir, path); d.Type().IsRegular() {
			all = append(all, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

func soon() time.Time { return time.Now().Add(time.Minute) }

// Many writers at once never get more than the limits, of the root and of a quota below; all
// of them find room, because older files go.
func TestAdmissionIsStrict(t *testing.T) {
	opts := options(t.TempDir())
	opts.Capacity = Limit{Bytes: 12 * mib}
	w := start(t, opts)
	put(t, w.dir, "a1/first", 1)
	w.Created(keyOf(t, filepath.Join(w.dir, "a1")), keyOf(t, w.dir), "a1", true)
	if err := w.SetQuota("a1", 4*mib); err != nil {
		t.Fatal(err)
	}
	quota := w.limited()[0]
	var most, mostQuota atomic.Int64
	var writers, watcher sync.WaitGroup
	done := make(chan struct{})
	watcher.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				most.Store(max(most.Load(), w.inv.Root().Claimed()))
				mostQuota.Store(max(mostQuota.Load(), quota.Claimed()))
			}
		}
	})
	const each = 40
	for i := range 8 {
		writers.Go(func() {
			for j := range each {
				n := i*each + j
				if n%3 > 0 {
					n = n&^15 | 1 // into the directory with the quota
				}
				n = n&15 | (i*each+j)<<4
				if err := w.store(entry(n), 256<<10, soon()); err != nil {
					t.Errorf("writer %d, file %d: %v", i, j, err)
					return
				}
			}
		})
	}
	writers.Wait()
	close(done)
	watcher.Wait()
	if got := most.Load(); got > 12*mib {
		t.Errorf("%d bytes were claimed of %d", got, 12*mib)
	}
	if got := mostQuota.Load(); got > 4*mib {
		t.Errorf("%d bytes were claimed of a quota of %d", got, 4*mib)
	}
	if w.Stats().Evicted == 0 || most.Load() < 8*mib {
		t.Errorf("%+v with at most %d bytes claimed: the limits were never reached", w.Stats(), most.Load())
	}
	if err := w.inv.Scan(context.Background()); err != nil {
		t.Fatal(err)
	}
	if b, c := w.inv.Root().Bytes(), w.inv.Root().Claimed(); b != c {
		t.Errorf("%d bytes are claimed for writers that have ended", c-b)
	}
}

// What may not go is left, and a writer hears at once that there is no room.
func TestNothingMayGo(t *testing.T) {
	for name, prepare := range map[string]func(*world, string){
		"in use":      func(w *world, rel string) { w.Opened(keyOf(w.t, filepath.Join(w.dir, rel)), FileKey{}, "") },
		"pinned":      func(w *world, rel string) { must(w.t, w.AddPin(Pin{Pattern: filepath.Dir(rel)})) },
		"pinned by *": func(w *world, rel string) { must(w.t, w.AddPin(Pin{Pattern: "*/a*"})) },
		"several names": func(w *world, rel string) {
			must(w.t, os.Link(filepath.Join(w.dir, rel), filepath.Join(w.dir, "other")))
		},
		"of no layout": func(w *world, rel string) {
			put(w.t, w.dir, "unknown", 3*mib)
			must(w.t, os.Remove(filepath.Join(w.dir, rel)))
			must(w.t, w.inv.Scan(context.Background()))
		},
		"a page file": func(w *world, rel string) {
			put(w.t, w.dir, "hf3fs_vllm_data_file_0", 3*mib)
			must(w.t, os.Remove(filepath.Join(w.dir, rel)))
			must(w.t, w.inv.Scan(context.Background()))
		},
		"young": func(w *world, rel string) {
			must(w.t, w.SetLimits(Limits{Capacity: w.Capacity, HighPercent: w.HighPercent, LowPercent: w.LowPercent, Grace: time.Hour}))
			now := time.Now()
			must(w.t, os.Chtimes(filepath.Join(w.dir, rel), now, now))
		},
		"young by a clock before a step": func(w *world, rel string) {
			must(w.t, w.SetLimits(Limits{Capacity: w.Capacity, HighPercent: w.HighPercent, LowPercent: w.LowPercent, Grace: time.Hour}))
			now := time.Now()
			must(w.t, os.Chtimes(filepath.Join(w.dir, rel), now, now))
			real := w.wall.now
			w.wall.now = func() (time.Duration, time.Time) {
				at, wall := real()
				return at, wall.Add(1000 * time.Hour)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := options(t.TempDir())
			opts.Capacity = Limit{Bytes: 4 * mib}
			var log bytes.Buffer
			opts.Log = slog.New(slog.NewTextHandler(&log, nil))
			opts.Grace = time.Minute // what the test is about to write is not taken for left behind
			put(t, opts.Dir, entry(1), 3*mib)
			old := time.Now().Add(-time.Hour)
			must(t, os.Chtimes(filepath.Join(opts.Dir, entry(1)), old, old))
			w := &world{t: t, dir: opts.Dir}
			k, err := New(opts)
			must(t, err)
			w.Keeper = k
			must(t, k.inv.Scan(context.Background()))
			k.wall.look()
			prepare(w, entry(1))
			before := files(t, w.dir)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- k.Run(ctx) }()
			defer func() {
				cancel()
				must(t, <-ended)
				must(t, k.Close())
				if said := log.String(); !strings.Contains(said, "a write failed, since there is no room") || !strings.Contains(said, "directory=.") {
					t.Errorf("the log does not say why a write failed: %s", said)
				}
			}()
			err = w.store(entry(2), 2*mib, soon())
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%v; want ENOSPC", err)
			}
			for _, f := range before {
				if _, err := os.Lstat(filepath.Join(w.dir, f)); err != nil {
					t.Errorf("%s is gone: %v", f, err)
				}
			}
			if w.Stats().Refused != 1 {
				t.Errorf("%+v; want one refusal", w.Stats())
			}
		})
	}
}

// Of what was last used at the same time, what was written last leaves first: what is left of a
// prompt is its beginning.
func TestLeafLeavesBeforeItsRoot(t *testing.T) {
	opts, later := clocked(t.TempDir())
	opts.Capacity, opts.Grace = Limit{Bytes: 64 * mib}, time.Nanosecond
	var order []string
	opts.Unlink = func(dir, name string, _ Victim) error {
		order = append(order, filepath.Join(dir, name))
		return nil
	}
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	w := &world{t: t, dir: opts.Dir, Keeper: k}
	must(t, k.inv.Scan(context.Background()))
	var want []string
	for i, rel := range []string{entry(5), entry(3), entry(21), entry(1), gdsName, entry(17)} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(w.dir, rel)), 0o700))
		must(t, w.store(rel, 40960, soon()))
		must(t, os.Chtimes(filepath.Join(w.dir, rel), time.Time{}, time.Now().Add(time.Duration(i-100)*time.Second)))
		want = append([]string{rel}, want...)
	}
	must(t, k.inv.Scan(context.Background()))
	later(time.Second)
	for _, rel := range want {
		w.use(rel)
	}
	k.remove(k.inv.Candidates(inventory.Query{Top: k.inv.Root(), Most: 100, Rank: k.rank}), purge{}, &outcome{})
	if !slices.Equal(order, want) {
		t.Errorf("removed in the order %q; want %q", order, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Files leave in the order of their last uses and the number of those, temporary ones first.
func TestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		heats map[string]inventory.Heat // Ino is filled in
		want  []string                  // in order
	}{
		"by last use":     {map[string]inventory.Heat{entry(1): {Age: 300}, entry(2): {Age: 500}, entry(3): {Age: 400}}, []string{entry(2), entry(3), entry(1)}},
		"uses put it off": {map[string]inventory.Heat{entry(1): {Age: 300}, entry(2): {Age: 500, Uses: 2}, entry(3): {Age: 400}}, []string{entry(3), entry(1), entry(2)}},
		"five uses count": {map[string]inventory.Heat{entry(1): {Age: 300, Uses: 5}, entry(2): {Age: 500, Uses: 200}, entry(3): {Age: 40}}, []string{entry(3), entry(2), entry(1)}},
		"temporary first": {map[string]inventory.Heat{entry(1): {Age: 300}, ".temp/" + fmt.Sprintf("%032x", 7): {Age: 1}}, []string{".temp/" + fmt.Sprintf("%032x", 7), entry(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			opts := options(t.TempDir())
			opts.Capacity, opts.UseBonus = Limit{Bytes: 64 * mib}, 150*time.Second
			var order []string
			opts.Unlink = func(dir, name string, want Victim) error {
				order = append(order, filepath.Join(dir, name))
				return os.Remove(filepath.Join(opts.Dir, dir, name))
			}
			k, err := New(opts)
			must(t, err)
			defer k.Close()
			var all []inventory.Heat
			for rel, h := range c.heats {
				put(t, opts.Dir, rel, 10000)
				h.Ino = keyOf(t, filepath.Join(opts.Dir, rel)).Ino
				all = append(all, h)
			}
			k.inv.SetHeat(all)
			must(t, k.inv.Scan(context.Background()))
			k.shrink(context.Background(), k.inv.Root(), 0)
			if !slices.Equal(order, c.want) {
				t.Errorf("removed in the order %q; want %q", order, c.want)
			}
		})
	}
}

// Eviction stops at the low watermark.
func TestWatermarks(t *testing.T) {
	opts := options(t.TempDir())
	for n := range 60 {
		put(t, opts.Dir, entry(n), 100<<10)
	}
	opts.Capacity = Limit{Bytes: 4 * mib}
	w := start(t, opts)
	eventually(t, "the low watermark", func() bool { return w.inv.Root().Bytes() <= part(4*mib, 90) })
	w.stop()
	// No batch of files goes beyond it: one file at most.
	if b := w.inv.Root().Bytes(); b < part(4*mib, 90)-200<<10 {
		t.Errorf("%d bytes are left; want just below %d", b, part(4*mib, 90))
	}
}

// Who needs the room of a file that is in use waits for a moment: its reader may be done then.
func TestInUseForAMoment(t *testing.T) {
	opts := options(t.TempDir())
	opts.Capacity = Limit{Bytes: 4 * mib}
	put(t, opts.Dir, entry(1), 3*mib)
	put(t, opts.Dir, "new", 0)
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(filepath.Join(opts.Dir, entry(1)), old, old))
	k, err := New(opts)
	must(t, err)
	k.busyPatience = time.Minute
	w := startWith(t, opts, k)
	read := keyOf(t, filepath.Join(opts.Dir, entry(1)))
	w.Opened(read, FileKey{}, "")
	written := make(chan error, 1)
	key := keyOf(t, filepath.Join(opts.Dir, "new"))
	go func() { written <- w.Reserve(key, 2*mib, soon(), nil) }()
	eventually(t, "a writer who waits", func() bool { return w.waiting.Load() == 1 })
	w.makeRoomSeen(t)
	w.Closed(read, -1)
	must(t, <-written)
	w.Settle(key, 2*mib, -1)
}

// makeRoomSeen waits until the keeper has looked for files that may go, and has found none.
func (w *world) makeRoomSeen(t testing.TB) {
	w.kickNow()
	eventually(t, "a look for room", func() bool { return len(w.kick) == 0 })
}

// A long removal keeps nobody from the keeper's other duties.
func TestLongRemoval(t *testing.T) {
	opts := options(t.TempDir())
	opts.SaveEvery = time.Millisecond
	opts.LowPercent = 10
	for n := range 60 {
		put(t, opts.Dir, entry(n), 100<<10)
	}
	opts.Capacity = Limit{Bytes: 4 * mib}
	var k *Keeper
	saved := false // while there was still something to be removed; Run's
	opts.Unlink = func(dir, name string, want Victim) error {
		_, err := os.Stat(filepath.Join(opts.StateDir, heatName))
		saved = saved || err == nil
		time.Sleep(tick / 20) // as a busy disk does
		return k.inv.Unlink(dir, name, want)
	}
	k, err := New(opts)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	eventually(t, "the low watermark", func() bool { return k.inv.Scanned() && k.inv.Root().Bytes() <= part(4*mib, 10) })
	cancel()
	must(t, <-ended)
	must(t, k.Close())
	if !saved {
		t.Error("nothing was saved during a removal of seconds")
	}
}

// A file that changes between the look at it and its removal stays.
func TestUnlinkRace(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"replaced": func(path string) error {
			must(t, os.WriteFile(path+".new", make([]byte, 10000), 0o600))
			must(t, os.Chtimes(path+".new", time.Unix(5, 5), time.Unix(5, 5)))
			return os.Rename(path+".new", path)
		},
		"grown": func(path string) error {
			must(t, os.Truncate(path, 20000))
			return os.Chtimes(path, time.Unix(5, 5), time.Unix(5, 5))
		},
		"touched": func(path string) error { return os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 1)) },
		"a link": func(path string) error {
			must(t, os.Remove(path))
			return os.Symlink("elsewhere", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := options(t.TempDir())
			put(t, opts.Dir, entry(1), 10000)
			must(t, os.Chtimes(filepath.Join(opts.Dir, entry(1)), time.Unix(5, 5), time.Unix(5, 5)))
			k, err := New(opts)
			must(t, err)
			defer k.Close()
			k.Unlink = func(dir, name string, want Victim) error {
				must(t, change(filepath.Join(opts.Dir, dir, name)))
				return k.inv.Unlink(dir, name, want)
			}
			must(t, k.inv.Scan(context.Background()))
			k.shrink(context.Background(), k.inv.Root(), 0)
			if _, err := os.Lstat(filepath.Join(opts.Dir, entry(1))); err != nil {
				t.Error(err)
			}
			if s := k.Stats(); s.Evicted != 0 || s.Kept != 1 {
				t.Errorf("%+v; want one kept", s)
			}
		})
	}
}

// The file that says that data is there goes before the data, and a hot entry does not
// lose it because nobody reads that file.
func TestPairs(t *testing.T) {
	opts := options(t.TempDir())
	var order []string
	var k *Keeper
	opts.Unlink = func(dir, name string, want Victim) error {
		order = append(order, name)
		return k.inv.Unlink(dir, name, want)
	}
	data := gdsName
	put(t, opts.Dir, data, 10000)
	put(t, opts.Dir, data+".metadata", 4096)
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	if kindOf(data) != inventory.Entry || kindOf(data+".metadata") != inventory.Side {
		t.Fatalf("of kinds %v and %v", kindOf(data), kindOf(data+".metadata"))
	}
	must(t, k.inv.Scan(context.Background()))
	k.Opened(keyOf(t, filepath.Join(opts.Dir, data)), FileKey{}, "")
	k.shrink(context.Background(), k.inv.Root(), 0)
	if len(order) > 0 {
		t.Errorf("%q went from an entry in use", order)
	}
	k.Closed(keyOf(t, filepath.Join(opts.Dir, data)), -1)
	k.shrink(context.Background(), k.inv.Root(), 0)
	if base := filepath.Base(data); !slices.Equal(order, []string{base + ".metadata", base}) {
		t.Errorf("removed in the order %q", order)
	}
}

// Those who wait are served in order, and leave when they are told to.
func TestWaiting(t *testing.T) {
	opts := options(t.TempDir())
	opts.Capacity = Limit{Bytes: 4 * mib}
	w := start(t, opts)
	put(t, w.dir, "x", 0)
	x, root := keyOf(t, filepath.Join(w.dir, "x")), keyOf(t, w.dir)
	w.Created(x, root, "x", false)
	must(t, w.Reserve(x, 3*mib, soon(), nil))
	if err := w.Reserve(x, 2*mib, time.Time{}, nil); err != unix.EAGAIN {
		t.Errorf("without a deadline: %v; want EAGAIN", err)
	}
	if err := w.Reserve(x, 5*mib, soon(), nil); err != unix.ENOSPC {
		t.Errorf("more than the limit: %v; want ENOSPC", err)
	}
	if err := w.Reserve(x, 2*mib, time.Now().Add(time.Millisecond), nil); err != unix.ENOSPC {
		t.Errorf("after the deadline: %v; want ENOSPC", err)
	}
	cancel := make(chan struct{})
	first, second, third := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { first <- w.Reserve(x, 2*mib, soon(), cancel) }()
	eventually(t, "the first waiter", func() bool { return w.waiting.Load() == 1 })
	go func() { second <- w.Reserve(x, 3*mib, soon(), nil) }()
	eventually(t, "the second waiter", func() bool { return w.waiting.Load() == 2 })
	go func() { third <- w.Reserve(x, mib/2, soon(), nil) }()
	eventually(t, "the third waiter, whom nobody lets overtake", func() bool { return w.waiting.Load() == 3 })
	if err := w.Reserve(root, 16<<10, time.Time{}, nil); err != nil {
		t.Errorf("a new entry while others wait for room: %v", err)
	}
	w.Settle(root, 16<<10, -1)
	close(cancel)
	if err := <-first; err != unix.EINTR {
		t.Errorf("canceled: %v; want EINTR", err)
	}
	w.Settle(x, 3*mib, 0)
	must(t, <-second)
	must(t, <-third)
	w.Settle(x, 3*mib, 0)
	w.Settle(x, mib/2, 0)
	if c, b := w.inv.Root().Claimed(), w.inv.Root().Bytes(); c != b {
		t.Errorf("%d claimed of %d", c, b)
	}
	if capacity, free, limited := w.SpaceOf(root); capacity != 4*mib || free != 4*mib-w.inv.Root().ForEntries()-w.inv.Root().Bytes() || !limited {
		t.Errorf("space: %d of %d, %v", free, capacity, limited)
	}
}

// Quotas, pins and TTLs are there after a restart; a directory keeps its quota when it is moved,
// and a new one at the path of one that was removed gets it.
func TestRules(t *testing.T) {
	opts := options(t.TempDir())
	odd := "dir with\nnewline and \xff"
	for _, dir := range []string{"a", "b", odd} {
		must(t, os.Mkdir(filepath.Join(opts.Dir, dir), 0o700))
	}
	w := start(t, opts)
	must(t, w.SetQuota("a", 2*mib))
	must(t, w.SetQuota("b", 3*mib))
	must(t, w.SetQuota(odd, 4*mib))
	must(t, w.SetQuota("b", 5*mib))
	byModel := Pin{"*", Origin{Owner: "lmcache", Model: odd}}
	must(t, w.AddPin(byModel))
	must(t, w.AddPin(Pin{Pattern: "pinned/*"}))
	must(t, w.SetTTL(odd, time.Hour))
	for name, err := range map[string]error{
		"missing":   w.SetQuota("c", 2*mib),
		"root":      w.SetQuota(".", 2*mib),
		"outside":   w.SetQuota("../x", 2*mib),
		"own state": w.SetQuota(".kv3fs", 2*mib),
		"tiny":      w.SetQuota("a", 5),
		"negative":  w.SetQuota("a", -5),
		"pattern":   w.AddPin(Pin{Pattern: "[a"}),
		"owner":     w.AddPin(Pin{".", Origin{Owner: "nobody"}}),
		"model":     w.AddPin(Pin{".", Origin{Model: "\x00"}}),
		"TTL":       w.SetTTL("a", -time.Second),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	must(t, os.Rename(filepath.Join(w.dir, "a"), filepath.Join(w.dir, "b", "moved")))
	root, b := keyOf(t, w.dir), keyOf(t, filepath.Join(w.dir, "b"))
	w.Renamed(keyOf(t, filepath.Join(w.dir, "b/moved")), root, "a", b, "moved")
	w.look()
	w.stop()

	k, err := New(opts)
	must(t, err)
	defer k.Close()
	var got []string
	for _, q := range k.Quotas() {
		got = append(got, fmt.Sprintf("%q %d %v", q.Path, q.Bytes/mib, q.Missing))
	}
	if want := []string{`"b" 5 false`, `"b/moved" 2 false`, fmt.Sprintf("%q 4 false", odd)}; !slices.Equal(got, want) {
		t.Errorf("quotas %q; want %q", got, want)
	}
	if pins, ttls := k.Pins(), k.TTLs(); !slices.Contains(pins, byModel) || !slices.Contains(pins, Pin{Pattern: "pinned/*"}) || len(pins) != 2 || !slices.Equal(ttls, []TTL{{odd, time.Hour}}) {
		t.Errorf("pins %q, TTLs %v", pins, ttls)
	}
	must(t, k.RemoveQuota("b/moved"))
	if err := k.RemoveQuota("b/moved"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("removed twice: %v; want ENOENT", err)
	}
	must(t, os.Remove(filepath.Join(opts.Dir, "b", "moved")))
	moved := keyOf(t, filepath.Join(opts.Dir, "b"))
	k.Removed(moved, root, "b", true)
	must(t, os.Remove(filepath.Join(opts.Dir, "b")))
	k.findQuotas()
	if q := k.Quotas()[0]; !q.Missing {
		t.Errorf("%+v; want it to be missing", q)
	}
	must(t, os.Mkdir(filepath.Join(opts.Dir, "b"), 0o700))
	k.findQuotas()
	if d, err := k.inv.Find("b"); err != nil || d.Limit() != 5*mib {
		t.Errorf("the new directory has no quota: %v", err)
	}
}

// Damaged rules are an error that names the file, at every byte.
func TestDamagedRules(t *testing.T) {
	opts := options(t.TempDir())
	must(t, os.Mkdir(filepath.Join(opts.Dir, "a"), 0o700))
	k, err := New(opts)
	must(t, err)
	must(t, k.SetQuota("a", 2*mib))
	k.Close()
	path := filepath.Join(opts.StateDir, rulesName)
	good, err := os.ReadFile(path)
	must(t, err)
	for cut := range len(good) - 2 {
		must(t, os.WriteFile(path, good[:cut], 0o600))
		if k, err := New(opts); err == nil {
			k.Close()
			t.Fatalf("%q is accepted", good[:cut])
		} else if !strings.Contains(err.Error(), path) {
			t.Fatalf("the error names no file: %v", err)
		}
	}
}

// What is wrong in the file of the rules is told from a disk that fails: only that is worth another try.
func TestDamageIsNoErrno(t *testing.T) {
	for _, text := range []string{
		`{"version":2,"quotas":[{"path":"\"a\"","bytes":1048576,"moving_to":"\"b\""}]}`,
		`{"version":2,"quotas":[{"path":"\"a\"","bytes":1048576,"inode":7}]}`,
		`{"version":1,"quotas":[{"path":"\"a\"","bytes":1048576,"moving_to":"\"b\"","inode":7}]}`,
	} {
		var errno syscall.Errno
		if _, err := decodeRules([]byte(text)); err == nil || errors.As(err, &errno) || !strings.Contains(err.Error(), "quota of") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Unused files go by their TTL, pinned ones stay.
func TestTTL(t *testing.T) {
	opts := options(t.TempDir())
	var all []inventory.Heat
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	for rel, age := range map[string]uint32{"cache/old": 5000, "cache/new": 10, "cache/deep/old": 5000, "keep/old": 5000, "cache/pinned": 5000} {
		put(t, opts.Dir, rel, 100)
		all = append(all, inventory.Heat{Ino: keyOf(t, filepath.Join(opts.Dir, rel)).Ino, Age: age})
	}
	k.inv.SetHeat(all)
	must(t, k.inv.Scan(context.Background()))
	must(t, k.SetTTL("ca*", time.Hour))
	must(t, k.AddPin(Pin{Pattern: "cache/p*"}))
	k.expire(context.Background())
	if got, want := files(t, opts.Dir), []string{"cache/new", "cache/pinned", "keep/old"}; !slices.Equal(got, want) {
		t.Errorf("left are %q; want %q", got, want)
	}
	if s := k.Stats(); s.Expired != 2 || s.Evicted != 0 {
		t.Errorf("%+v; want two expired", s)
	}
}

// A file that is to go again and again and stays counts once.
func TestKeptCountsFiles(t *testing.T) {
	opts := options(t.TempDir())
	opts.Grace = time.Hour
	for n := range 3 {
		put(t, opts.Dir, entry(n), 100)
	}
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	must(t, k.inv.Scan(context.Background()))
	for range 5 {
		k.remove(k.inv.Candidates(inventory.Query{Top: k.inv.Root(), Most: 100, Rank: k.rank}), purge{}, &outcome{})
	}
	if s := k.Stats(); s.Kept != 3 {
		t.Errorf("%d kept; want 3 files", s.Kept)
	}
}

// What unfinished writers left behind goes without any need for room.
func TestReap(t *testing.T) {
	opts := options(t.TempDir())
	temp := ".temp/" + fmt.Sprintf("%032x", 7)
	put(t, opts.Dir, temp, 100)
	put(t, opts.Dir, entry(1), 100)
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	must(t, k.inv.Scan(context.Background()))
	k.reap(context.Background())
	if s := k.Stats(); s.Reaped != 1 {
		t.Errorf("%+v; want one reaped", s)
	}
	if got := files(t, opts.Dir); !slices.Equal(got, []string{entry(1)}) {
		t.Errorf("left are %q", got)
	}
}

// Limits may change while a keeper works: a smaller capacity is kept to, one that makes no sense changes nothing.
func TestSetLimits(t *testing.T) {
	opts := options(t.TempDir())
	for n := range 30 {
		put(t, opts.Dir, entry(n), 100<<10)
	}
	opts.Capacity = Limit{Bytes: 8 * mib}
	w := start(t, opts)
	for _, bad := range []Limits{
		{Capacity: Limit{}}, {Capacity: Limit{Bytes: 1}}, {Capacity: Limit{Bytes: 4 * mib}, HighPercent: 50, LowPercent: 60}, {Capacity: Limit{Bytes: 4 * mib}, Grace: -1},
	} {
		if err := w.SetLimits(bad); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
	if s := w.State(); s.LimitBytes != 8*mib || s.HighPercent != 95 || s.LowPercent != 90 || s.EvictedFiles != 0 {
		t.Fatalf("after errors: %+v", s)
	}
	var all sync.WaitGroup
	for _, high := range []float64{60, 70, 80} {
		all.Go(func() {
			if err := w.SetLimits(Limits{Capacity: Limit{Bytes: 2 * mib}, HighPercent: high, LowPercent: 50, Grace: time.Nanosecond}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	eventually(t, "the new limit", func() bool { return w.State().LimitBytes == 2*mib && w.inv.Root().Bytes() <= part(2*mib, 50) })
}
