package sums

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A process that saves a block anew has a record of its own: the one that another process
// wrote is void a moment later, or gone.
func TestRecordsOfOthersDoNotCount(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, a *Logs, key kv.Key){
		"forgotten": forget,
		"compacted": func(t *testing.T, a *Logs, _ kv.Key) {
			do(t, a.Compact(func(kv.Key, bool) bool { return false })) // the file is not there yet
		},
		"deleted": func(t *testing.T, a *Logs, _ kv.Key) {
			do(t, os.Remove(a.logs[a.own].f.Name()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			a, b := openLogs(t, root, ours), openLogs(t, root, ours)
			key := kv.Key{1}
			put(t, a, key, []uint64{11})
			if find(t, b, key) == nil {
				t.Fatal("not shared")
			}
			put(t, b, key, []uint64{11})
			lose(t, a, key)
			for _, x := range []*Logs{b, openLogs(t, root, ours)} {
				if got := find(t, x, key); len(got) == 0 || got[0][0] != 11 {
					t.Errorf("the record is lost: %v", got)
				}
			}
		})
	}
}

// A block is saved anew while its old record is being dropped.
func TestRecordDuringCompaction(t *testing.T) {
	root := t.TempDir()
	a := openLogs(t, root, ours)
	key := kv.Key{1}
	put(t, a, key, []uint64{11})
	do(t, a.Compact(func(kv.Key, bool) bool {
		put(t, a, key, []uint64{11})
		return false // it was not there before
	}))
	for _, x := range []*Logs{a, openLogs(t, root, ours)} {
		if got := find(t, x, key); len(got) != 1 {
			t.Errorf("%v", got)
		}
	}
}

// The mark tells the store's files from others, where all of the store's have it.
func TestMark(t *testing.T) {
	const plain, marked = unix.S_IFREG | 0o644, unix.S_IFREG | unix.S_ISVTX | 0o644
	check := func(name string, b *Logs, want bool) {
		t.Helper()
		if b.OfOthers(marked) || b.OfOthers(plain) != want {
			t.Errorf("%s: with the mark %v, without %v", name, b.OfOthers(marked), b.OfOthers(plain))
		}
	}
	root := t.TempDir()
	b := openLogs(t, root, ours)
	check("a new directory", b, true)
	check("another process", openLogs(t, root, ours), true)
	do(t, b.Compact(func(kv.Key, bool) bool { return true }))
	for _, name := range logsIn(t, root) {
		if info, err := os.Stat(name); err != nil || info.Mode()&Mark == 0 {
			t.Error("a log without the mark", info.Mode(), err)
		}
	}

	old := t.TempDir() // of 0.1.0
	do(t, os.Mkdir(filepath.Join(old, DirName), 0o775))
	b = openLogs(t, old, ours)
	check("a directory of 0.1.0", b, false)
	path := filepath.Join(old, DirName, "marked")
	do(t, os.WriteFile(path, nil, 0o644)) // as on a file system that does not keep the bit
	check("marks are not kept", b, false)
	do(t, os.Chmod(path, 0o644|Mark))
	check("adopted", b, true)
}

// Of two compactions at once, the second leaves the first alone.
func TestCompactionDuringCompaction(t *testing.T) {
	root := t.TempDir()
	a := openLogs(t, root, ours)
	for i := range byte(20) {
		put(t, a, kv.Key{i}, []uint64{uint64(i)})
	}
	all := func(kv.Key, bool) bool { return true }
	do(t, a.Compact(func(kv.Key, bool) bool {
		do(t, a.Compact(all))
		return true
	}))
	do(t, a.Compact(all))
	for _, x := range []*Logs{a, openLogs(t, root, ours)} {
		for i := range byte(20) {
			if got := find(t, x, kv.Key{i}); len(got) != 1 {
				t.Errorf("%d: %v", i, got)
			}
		}
	}
}
