package segment

import (
	"errors"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/faultdir"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A block that could not be read for a moment is found again after a while.
func TestUnreadableIsForgotten(t *testing.T) {
	dir := faultdir.New(t)
	s := open(t, options(dir.Path, small, 4, 8))
	save(t, s, keysOf(0, 3)...)
	dir.Fail(faultdir.EIO("read"))
	task, err := s.Load(t.Context(), shardsOf(small, keysOf(0, 3)...))
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	for _, is := range found(t, s, keysOf(0, 3)...) {
		if is {
			t.Error("found though it cannot be read")
		}
	}
	dir.Heal()
	s.mu.Lock()
	for at, until := range s.unreadable {
		s.unreadable[at] = until.Add(-kv.UnreadableFor)
	}
	s.mu.Unlock()
	for _, is := range found(t, s, keysOf(0, 3)...) {
		if !is {
			t.Error("not found though it can be read")
		}
	}
	loads(t, s, keysOf(0, 3)...)
}

// If nothing but the headers can be read when the store is opened, its blocks are missing, and are there
// when it is opened again: no segment of theirs is taken for an empty one.
func TestOpenedDuringAnOutage(t *testing.T) {
	dir := faultdir.New(t)
	o := options(dir.Path, small, 8, 8)
	s := open(t, o)
	save(t, s, keysOf(0, 12)...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	dir.Fail(func(c faultdir.Call) syscall.Errno {
		if c.Op == "read" && c.Offset > 0 {
			return syscall.EIO
		}
		return 0
	})
	s = open(t, o)
	dir.Heal()
	for i, is := range found(t, s, keysOf(0, 12)...) {
		if is {
			t.Errorf("block %d is found", i)
		}
	}
	save(t, s, keysOf(100, 8)...) // a segment full
	if err := s.Delete(t.Context(), keysOf(100, 1)); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s, o)
	loads(t, s, keysOf(0, 12)...)
	loads(t, s, keysOf(101, 7)...)
}

// A block of which nothing could be read when the store was opened outlasts the deletion of a neighbour, whose page of the index
// does not know it.
func TestDeletedBesideAnUnreadBlock(t *testing.T) {
	dir := faultdir.New(t)
	o := options(dir.Path, small, 8, 8)
	s := open(t, o)
	save(t, s, keysOf(0, 3)...)
	seg := s.segmentWith(t, keyOf(2))
	s.mu.RLock()
	at, _ := s.table.find(keyOf(2))
	s.mu.RUnlock()
	head := s.geo.headAt(int(at - seg.first))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, seg.file.Name(), s.geo.indexAt(), make([]byte, s.geo.indexPages()*pageBytes)) // as after a kill
	dir.Fail(func(c faultdir.Call) syscall.Errno {
		if c.Op == "read" && c.Offset == head {
			return syscall.EIO
		}
		return 0
	})
	s = open(t, o)
	dir.Heal()
	if is := found(t, s, keysOf(0, 3)...); !is[0] || !is[1] || is[2] {
		t.Fatalf("found %v", is)
	}
	if err := s.Delete(t.Context(), keysOf(0, 1)); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s, o)
	loads(t, s, keysOf(1, 2)...)
	if found(t, s, keyOf(0))[0] {
		t.Error("a deleted block came back")
	}
}
