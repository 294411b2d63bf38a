package sums

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var ours = Shape{kv.Fingerprint{9}, 4096, 1}

func openLogs(t *testing.T, root string, s Shape) *Logs {
	t.Helper()
	b, err := Open(root, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put records checksums.
func put(t *testing.T, b *Logs, key kv.Key, sums []uint64) {
	t.Helper()
	do(t, b.Record(key, sums))
}

func forget(t *testing.T, b *Logs, key kv.Key) {
	t.Helper()
	_, err := b.Forget(key)
	do(t, err)
}

func find(t *testing.T, b *Logs, key kv.Key) [][]uint64 {
	t.Helper()
	found, err := b.Find(key, time.Now())
	do(t, err)
	return found.Sums
}

func logsIn(t *testing.T, root string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, DirName, "*"+suffix))
	do(t, err)
	return names
}

// Two processes with a log each read what the other one writes. A third process reads
// both logs after both have ended.
func TestLogsAreShared(t *testing.T) {
	root := t.TempDir()
	a, b := openLogs(t, root, ours), openLogs(t, root, ours)
	put(t, a, kv.Key{1}, []uint64{11})
	put(t, b, kv.Key{2}, []uint64{22})
	put(t, b, kv.Key{1}, []uint64{12})
	check := func(b *Logs) {
		t.Helper()
		if got := find(t, b, kv.Key{2}); len(got) != 1 || got[0][0] != 22 {
			t.Error(got)
		}
		got, err := b.Again(kv.Key{1}, time.Now())
		if err != nil || len(got.Sums) != 2 {
			t.Error(got, err)
		}
		if got := find(t, b, kv.Key{3}); got != nil {
			t.Error(got)
		}
	}
	check(a)
	check(b)
	do(t, a.Close())
	do(t, b.Close())
	c := openLogs(t, root, ours)
	check(c)
	if names := logsIn(t, root); len(names) != 2 {
		t.Errorf("a third process took over none of the logs: %q", names)
	}
	if _, err := a.Find(kv.Key{1}, time.Now()); err != kv.ErrClosed {
		t.Error(err)
	}
	if err := a.Record(kv.Key{1}, []uint64{1}); err != kv.ErrClosed {
		t.Error(err)
	}
}

func TestRecordingAgainCostsNothing(t *testing.T) {
	root := t.TempDir()
	b := openLogs(t, root, ours)
	put(t, b, kv.Key{1}, []uint64{1})
	size := b.logs[b.own].end
	put(t, b, kv.Key{1}, []uint64{1})
	if b.logs[b.own].end != size {
		t.Error("the log grew")
	}
}

// Void records stay void, and later records count, whichever log is read first.
func TestForget(t *testing.T) {
	root := t.TempDir()
	a, b := openLogs(t, root, ours), openLogs(t, root, ours)
	key := kv.Key{1}
	put(t, a, key, []uint64{11})
	find(t, b, key)
	forget(t, b, key)
	if got := find(t, b, key); got != nil {
		t.Errorf("in the process that forgot it: %v", got)
	}
	do(t, a.catchUp(time.Now()))
	if got := find(t, a, key); got != nil {
		t.Errorf("in the process that had written it: %v", got)
	}
	put(t, a, key, []uint64{11})
	do(t, b.catchUp(time.Now()))
	for _, x := range []*Logs{a, b, openLogs(t, root, ours)} {
		if got := find(t, x, key); len(got) != 1 {
			t.Errorf("recorded anew: %v", got)
		}
	}
}

func TestShapes(t *testing.T) {
	root := t.TempDir()
	key := kv.Key{1}
	whole := openLogs(t, root, ours)
	put(t, whole, key, []uint64{1})
	for name, s := range map[string]Shape{
		"namespace": {kv.Fingerprint{8}, 4096, 1},
		"size":      {kv.Fingerprint{9}, 8192, 1},
	} {
		if got, err := openLogs(t, root, s).Find(key, time.Now()); err != nil || !got.Foreign || got.Sums != nil {
			t.Errorf("another %s: %+v, %v", name, got, err)
		}
	}
	layered := openLogs(t, root, Shape{kv.Fingerprint{9}, 4096, 4})
	if got, err := layered.Find(key, time.Now()); err != nil || got.Foreign || got.Sums != nil {
		t.Errorf("cut another way: %+v, %v", got, err)
	}
	put(t, layered, key, []uint64{1, 2, 3, 4})
	if got := find(t, layered, key); len(got) != 1 || !slices.Equal(got[0], []uint64{1, 2, 3, 4}) {
		t.Error(got)
	}
	if got := find(t, whole, key); len(got) != 1 || got[0][0] != 1 {
		t.Error(got)
	}
}

// A process that takes a log over cuts off a torn tail; other readers skip it.
func TestTornLog(t *testing.T) {
	root := t.TempDir()
	b := openLogs(t, root, ours)
	put(t, b, kv.Key{1}, []uint64{1})
	do(t, b.Close())
	path := logsIn(t, root)[0]
	raw, err := os.ReadFile(path)
	do(t, err)
	do(t, os.WriteFile(path, append(raw, raw[:50]...), 0o644))
	b = openLogs(t, root, ours)
	put(t, b, kv.Key{2}, []uint64{2})
	if info, err := os.Stat(path); err != nil || info.Size() != int64(2*len(raw)) {
		t.Error(info, err)
	}
	other := openLogs(t, root, ours)
	if find(t, other, kv.Key{1}) == nil || find(t, other, kv.Key{2}) == nil {
		t.Error("records are lost")
	}
}

func TestCompact(t *testing.T) {
	root := t.TempDir()
	a, b := openLogs(t, root, ours), openLogs(t, root, ours)
	const n = 30000 // more than a window
	for i := range n {
		put(t, a, kv.Key{byte(i), byte(i >> 8), 1}, []uint64{uint64(i)})
	}
	find(t, b, kv.Key{1})
	forget(t, a, kv.Key{2, 0, 1})
	before := a.logs[a.own].end
	var during sync.Once
	do(t, a.Compact(func(k kv.Key, _ bool) bool {
		during.Do(func() { put(t, a, kv.Key{0xff, 0xff, 0xff}, []uint64{5}) })
		return k[0]%2 == 0 || k[0] == 0xff
	}))
	if after := a.logs[a.own].end; after > before*6/10 {
		t.Errorf("%d bytes became %d", before, after)
	}
	put(t, a, kv.Key{0xff, 0xff, 0xfe}, []uint64{6})
	do(t, b.catchUp(time.Now()))
	for _, x := range []*Logs{a, b, openLogs(t, root, ours)} {
		for key, want := range map[kv.Key]int{{3, 0, 1}: 0, {2, 0, 1}: 0, {4, 0, 1}: 1, {0xff, 0xff, 0xff}: 1, {0xff, 0xff, 0xfe}: 1} {
			if got := find(t, x, key); len(got) != want {
				t.Errorf("%s: %v", key, got)
			}
		}
	}
	if names := logsIn(t, root); len(names) != 3 {
		t.Errorf("%q", names)
	}
}

// A log that grows is compacted by whichever process has it then, however often it changes
// hands before that, and not again until it has grown as much.
func TestGrownAcrossProcesses(t *testing.T) {
	root := t.TempDir()
	shape := Shape{kv.Fingerprint{9}, 4096, kv.MaxShards} // large records
	n := uint32(0)
	add := func(ls *Logs, bytes int) {
		for end := ls.logs[ls.own].end + int64(bytes); ls.logs[ls.own].end < end; n++ {
			put(t, ls, kv.Key{byte(n), byte(n >> 8), byte(n >> 16), 1}, make([]uint64, kv.MaxShards))
		}
	}
	for step, s := range []struct {
		bytes int
		grown bool
	}{{compactBytes / 2, false}, {compactBytes/2 + 4096, true}, {compactBytes / 2, false}, {compactBytes / 4, false}, {compactBytes/4 + 4096, true}} {
		ls := openLogs(t, root, shape)
		add(ls, s.bytes)
		do(t, ls.Close())
		ls = openLogs(t, root, shape)
		if grown := ls.Grown(); grown != s.grown {
			t.Errorf("step %d: grown: %v, %d bytes, %d of them settled", step, grown, ls.logs[ls.own].end, ls.settled)
		}
		if s.grown {
			kept := n - 100
			do(t, ls.Compact(func(key kv.Key, _ bool) bool { return uint32(key[0])|uint32(key[1])<<8|uint32(key[2])<<16 >= kept }))
			if size := ls.logs[ls.own].end; size > 1<<20 || ls.Grown() {
				t.Errorf("step %d: compacted to %d bytes", step, size)
			}
		}
		do(t, ls.Close())
	}
	ls := openLogs(t, root, shape)
	add(ls, compactBytes)
	do(t, ls.Compact(func(kv.Key, bool) bool { return true }))
	do(t, ls.Close())
	if ls = openLogs(t, root, shape); ls.Grown() {
		t.Errorf("%d bytes are all of blocks that are there, and are to be compacted again", ls.logs[ls.own].end)
	}
}

// Compaction removes records that were forgotten, with what forgot them, unless the
// record is in another log.
func TestCompactForgets(t *testing.T) {
	root := t.TempDir()
	a, b := openLogs(t, root, ours), openLogs(t, root, ours)
	put(t, b, kv.Key{1}, []uint64{1})
	for i := range byte(100) {
		key := kv.Key{2, i}
		put(t, a, key, []uint64{uint64(i)})
		forget(t, a, key)
	}
	find(t, a, kv.Key{1})
	forget(t, a, kv.Key{1})
	do(t, a.Compact(func(kv.Key, bool) bool { return true }))
	if size := a.logs[a.own].end; size != 2*leastBytes {
		t.Errorf("%d bytes are left; one record that forgets, and the edge, have %d", size, 2*leastBytes)
	}
	do(t, b.catchUp(time.Now()))
	for _, x := range []*Logs{a, b, openLogs(t, root, ours)} {
		if got := find(t, x, kv.Key{1}); got != nil {
			t.Errorf("remembered: %v", got)
		}
	}
}

// Each namespace forgets its own records only.
func TestForgetOfOneNamespace(t *testing.T) {
	root := t.TempDir()
	a, b := openLogs(t, root, ours), openLogs(t, root, Shape{kv.Fingerprint{8}, 4096, 1})
	put(t, a, kv.Key{1}, []uint64{1})
	put(t, b, kv.Key{1}, []uint64{2})
	if _, err := a.Again(kv.Key{1}, time.Now()); err != nil {
		t.Fatal(err)
	}
	forget(t, a, kv.Key{1})
	do(t, b.catchUp(time.Now()))
	if got, err := a.Find(kv.Key{1}, time.Now()); err != nil || got.Known || !got.Foreign {
		t.Errorf("in the namespace that forgot it: %+v, %v", got, err)
	}
	if got := find(t, b, kv.Key{1}); len(got) != 1 {
		t.Errorf("the other namespace: %v", got)
	}
}

// One process inherits the log of a host that has been gone for a day. A log that is
// touched is left alone.
func TestOtherHosts(t *testing.T) {
	root := t.TempDir()
	a := openLogs(t, root, ours)
	put(t, a, kv.Key{1}, []uint64{1})
	do(t, a.Close())
	foreign := filepath.Join(root, DirName, "00000000000000000000000000000000-00000001.log")
	do(t, os.Rename(logsIn(t, root)[0], foreign))
	b := openLogs(t, root, ours)
	if len(logsIn(t, root)) != 2 || find(t, b, kv.Key{1}) == nil {
		t.Errorf("%q", logsIn(t, root))
	}
	do(t, os.Chtimes(foreign, time.Time{}, time.Now().Add(-25*time.Hour)))
	c := openLogs(t, root, ours)
	if _, err := os.Stat(foreign); !os.IsNotExist(err) {
		t.Error("not inherited", err)
	}
	if find(t, c, kv.Key{1}) == nil || find(t, b, kv.Key{1}) == nil {
		t.Error("lost on the way")
	}
}

func TestManyAtOnce(t *testing.T) {
	root := t.TempDir()
	all := []*Logs{openLogs(t, root, ours), openLogs(t, root, ours)}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 100 {
				key := kv.Key{byte(w), byte(i)}
				if err := all[w%2].Record(key, []uint64{uint64(i)}); err != nil {
					t.Error(err)
				}
				if got, err := all[(w+1)%2].Find(key, time.Now()); err != nil || len(got.Sums) != 1 {
					t.Error(got, err)
				}
				if i%10 == 0 {
					if _, err := all[w%2].Forget(kv.Key{byte(w), byte(i / 2)}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestNoDirectory(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "gone"), ours); !os.IsNotExist(err) {
		t.Error(err)
	}
	root := t.TempDir()
	do(t, os.WriteFile(filepath.Join(root, DirName), nil, 0o600))
	if _, err := Open(root, ours); err == nil {
		t.Error("Open accepted a file as the directory")
	}
}

// BenchmarkMillion measures what a million blocks cost a process that opens the store.
func BenchmarkMillion(b *testing.B) {
	root := b.TempDir()
	if err := os.Mkdir(filepath.Join(root, DirName), 0o775); err != nil {
		b.Fatal(err)
	}
	var raw []byte
	for i := range 1 << 20 {
		r := record{stamp: uint64(i), key: kv.Key{byte(i), byte(i >> 8), byte(i >> 16)}, shape: ours, sums: []uint64{1}}
		raw = r.append(raw)
	}
	if err := os.WriteFile(filepath.Join(root, DirName, fmt.Sprintf("%032x-1.log", 1)), raw, 0o644); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		logs, err := Open(root, ours)
		if err != nil {
			b.Fatal(err)
		}
		logs.Close()
	}
}

// The file system below the logs is replaced, as when a daemon is. Open files are
// useless from then on, and the logs use what is there now.
func TestReplacedFileSystem(t *testing.T) {
	root := t.TempDir()
	b := openLogs(t, root, ours)
	put(t, b, kv.Key{1}, []uint64{1})
	gone := func() error { return syscall.ENOTCONN }
	lose := func() error {
		if b.renewed == 0 {
			return gone()
		}
		return nil
	}
	do(t, b.retrying(lose))
	if find(t, b, kv.Key{1}) == nil {
		t.Error("lost")
	}
	put(t, b, kv.Key{2}, []uint64{2})

	// The new file system is not there yet.
	away := root + ".away"
	do(t, os.Rename(root, away))
	if err := b.retrying(gone); !errors.Is(err, syscall.ENOTCONN) || !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := b.Find(kv.Key{1}, time.Now()); !errors.Is(err, syscall.ESTALE) {
		t.Error(err)
	}
	if b.Touch() == nil || b.Grown() {
		t.Error("there is a log")
	}
	do(t, os.Rename(away, root))
	for i := range byte(2) {
		if find(t, b, kv.Key{i + 1}) == nil {
			t.Error("lost")
		}
	}
	do(t, b.Touch())
}

// A record that is damaged after it was read is ignored, without an error, and so is what
// has taken its place: a record of another block, or of another namespace.
func TestDamagedLater(t *testing.T) {
	layered := Shape{kv.Fingerprint{9}, 4096, 2}
	other := Shape{kv.Fingerprint{8}, 4096, 2}
	over := func(r record) func(f *os.File) error {
		return func(f *os.File) error {
			_, err := f.WriteAt(r.append(nil), 0)
			return err
		}
	}
	for name, damage := range map[string]func(f *os.File) error{
		"a bit is flipped": func(f *os.File) error {
			_, err := f.WriteAt([]byte{0xff}, 60)
			return err
		},
		"it is cut off":        func(f *os.File) error { return f.Truncate(0) },
		"it is cut in two":     func(f *os.File) error { return f.Truncate(50) },
		"another block's":      over(record{stamp: 7, key: kv.Key{2}, shape: layered, sums: []uint64{5, 6}}),
		"of another namespace": over(record{stamp: 7, key: kv.Key{1}, shape: other, sums: []uint64{5, 6}}),
		"one that makes void":  over(record{stamp: 7, key: kv.Key{1}, shape: layered, forget: true}),
	} {
		t.Run(name, func(t *testing.T) {
			b := openLogs(t, t.TempDir(), layered)
			put(t, b, kv.Key{1}, []uint64{1, 2})
			do(t, damage(b.logs[b.own].f))
			if got, err := b.Find(kv.Key{1}, time.Now()); err != nil || got.Sums != nil || !got.Known {
				t.Error(got, err)
			}
			forget(t, b, kv.Key{1})
			put(t, b, kv.Key{1}, []uint64{3, 4})
			if got := find(t, b, kv.Key{1}); len(got) != 1 || got[0][1] != 4 {
				t.Error(got)
			}
		})
	}
}

// The directory is removed: what was recorded is lost, and recording begins anew.
func TestRemovedDirectory(t *testing.T) {
	root := t.TempDir()
	b := openLogs(t, root, ours)
	put(t, b, kv.Key{1}, []uint64{1})
	do(t, os.RemoveAll(filepath.Join(root, DirName)))
	if got := find(t, b, kv.Key{2}); got != nil {
		t.Error(got)
	}
	put(t, b, kv.Key{3}, []uint64{3})
	if find(t, openLogs(t, root, ours), kv.Key{3}) == nil {
		t.Error("recorded in a file that has been removed")
	}
}
