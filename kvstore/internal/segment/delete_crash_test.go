package segment

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// A block is deleted after the keeper has copied its bytes and before it has written the
// head of the copy. The head is not written then: it would bring the block back.
func TestDeleteBetweenCopyAndHead(t *testing.T) {
	const slots = 4
	m := newInterceptor()
	o := options(t.TempDir(), small, 4, slots)
	o.Engine, o.CarryFraction = m, maxCarry
	s := open(t, o)
	save(t, s, keysOf(0, slots)...)
	loads(t, s, keyOf(0))
	deleted := make(chan error, 1)
	var begun atomic.Bool
	m.intercept(func(op transfer.Op, do func()) {
		// A copy is padded to whole pages, other than what is saved.
		isCopy := op.Write && (op.Offset-s.geo.slotAt(0))%s.geo.strideBytes == 0 && int64(len(op.Buf)) > small.BlockBytes
		if !isCopy || begun.Swap(true) {
			do()
			return
		}
		go func() {
			deleted <- s.Delete(context.Background(), keysOf(0, 1))
			do()
		}()
	})
	for n := 100; !begun.Load(); n++ {
		save(t, s, keyOf(n))
		waitReady(t, s)
	}
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	waitReady(t, s)
	settle(t, s)
	gone(t, s, keyOf(0))
	gone(t, afterKill(t, o), keyOf(0))
}

// readOnly has the store's own writes to a segment fail until the function it returns is
// called. It replaces the open file behind the descriptor.
func readOnly(t *testing.T, seg *segment) (mend func()) {
	t.Helper()
	fd := int(seg.file.Fd())
	was, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(seg.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	replace := func(with int) {
		if err := unix.Dup3(with, fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	replace(int(f.Fd()))
	return func() {
		replace(was)
		_ = unix.Close(was)
	}
}

// A Delete that has failed is repeated: the second one wipes what the first could not.
func TestDeleteAgainAfterAnError(t *testing.T) {
	o := options(t.TempDir(), small, 4, 8)
	s := open(t, o)
	save(t, s, keysOf(0, 4)...)
	mend := readOnly(t, s.segmentWith(t, keyOf(0)))
	if s.Delete(context.Background(), keysOf(0, 2)) == nil {
		t.Fatal("deleted from a file that cannot be written to")
	}
	mend()
	remove(t, s, keysOf(0, 2)...)
	next := afterKill(t, o)
	gone(t, next, keysOf(0, 2)...)
	loads(t, next, keysOf(2, 2)...)
}

// The same of a damaged block, whose head could not be wiped when that was found out.
func TestDeleteOfWhatCouldNotBeQuarantined(t *testing.T) {
	o := options(t.TempDir(), small, 4, 8)
	s := open(t, o)
	save(t, s, keysOf(0, 2)...)
	ruin(t, s, keyOf(0))
	mend := readOnly(t, s.segmentWith(t, keyOf(0)))
	task, err := s.Load(context.Background(), shardsOf(small, keyOf(0)))
	if err != nil {
		t.Fatal(err)
	}
	if task.Wait(context.Background()) == nil {
		t.Fatal("a damaged block is loaded")
	}
	mend()
	remove(t, s, keyOf(0))
	gone(t, afterKill(t, o), keyOf(0))
}

// A segment's header could not be written, so its old index is still valid. A block of it
// that is deleted is not found by the next process.
func TestDeleteAfterAFailedBeginning(t *testing.T) {
	const slots = 4
	o := options(t.TempDir(), small, 4, slots)
	o.CarryFraction = -1
	s := open(t, o)
	save(t, s, keysOf(0, slots)...)
	until(t, "the segment is sealed", func() bool { return sealed(s) == 1 })
	first := s.segmentWith(t, keyOf(0))
	mend := readOnly(t, first)
	troubled := func() bool {
		s.mu.RLock()
		defer s.mu.RUnlock()
		return first.unbegun
	}
	for n := 100; !troubled(); n++ {
		save(t, s, keyOf(n))
	}
	mend()
	remove(t, s, keysOf(0, slots)...)
	gone(t, afterKill(t, o), keysOf(0, slots)...)
}
