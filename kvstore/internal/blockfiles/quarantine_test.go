package blockfiles

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// The records of a damaged block are void before its file is moved: whoever finds no file
// there may save it again, and what it records must not become void.
func TestRecordsGoBeforeTheFile(t *testing.T) {
	l := kv.Layout{BlockBytes: 1000, ShardBytes: 1000}
	s := openOver(t, Options{Layout: l}, func(e transfer.Engine) transfer.Engine { return e })
	key := kv.Key{1}
	shards := l.ByBlock([]kv.Key{key}, [][]byte{make([]byte, 1000)})
	task, err := s.Save(t.Context(), shards)
	wait(t, task, err)
	path := s.path(s.roots[0], key)
	if err := os.WriteFile(path, make([]byte, 900), 0o644); err != nil {
		t.Fatal(err)
	}

	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	logs, err := filepath.Glob(filepath.Join(s.roots[0].dir, sums.DirName, "*.log"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	for name, events := range map[string]uint32{logs[0]: unix.IN_MODIFY, filepath.Dir(path): unix.IN_MOVED_FROM} {
		if _, err := unix.InotifyAddWatch(watch, name, events); err != nil {
			t.Fatal(err)
		}
	}
	task, err = s.Load(t.Context(), shards)
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(t.Context()); !errors.Is(err, kv.ErrCorrupt) {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(watch, buf)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for at := 0; at < n; at += unix.SizeofInotifyEvent + int(buf[at+12]) { // a short name
		switch mask := uint32(buf[at+4]); {
		case mask&unix.IN_MODIFY != 0:
			order = append(order, "forgotten")
		case mask&unix.IN_MOVED_FROM != 0:
			order = append(order, "moved")
		}
	}
	if len(order) != 2 || order[0] != "forgotten" || order[1] != "moved" {
		t.Errorf("%q", order)
	}
}

// A good block that another process puts in the place of a damaged one stays there, with
// its record.
func TestGoodBlockInPlaceOfADamagedOne(t *testing.T) {
	l := kv.Layout{BlockBytes: 1000, ShardBytes: 1000}
	s := openOver(t, Options{Layout: l}, func(e transfer.Engine) transfer.Engine { return e })
	key := kv.Key{1}
	shards := l.ByBlock([]kv.Key{key}, [][]byte{make([]byte, 1000)})
	task, err := s.Save(t.Context(), shards)
	wait(t, task, err)
	h, err := s.open(key)
	if err != nil {
		t.Fatal(err)
	}
	good := s.path(s.roots[0], key)
	h.ino++ // the handle is of the damaged file that was there before
	if s.putAside(h) {
		t.Error("a good block is put aside")
	}
	if _, err := os.Stat(good); err != nil {
		t.Error(err)
	}
	h.ino--
	s.release(h)
	task, err = s.Load(t.Context(), shards)
	wait(t, task, err)
}
