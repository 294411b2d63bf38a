package tree

import (
	"testing"
	"time"
)

// While one writer is telling the kernel, a second one does not return before the
// kernel knows.
func TestTwoWritersInvalidate(t *testing.T) {
	entered, proceed := make(chan struct{}, 2), make(chan struct{})
	tr, _ := newTree(t, Options{Invalidate: func(uint64, bool) { entered <- struct{}{}; <-proceed }})
	e, h := create(t, tr, RootID, "f", root, 0o600)
	defer h.Close()
	must(tr.Getattr(e.ID, time.Minute))
	f := must(tr.Acquire(e.Attr.Ino, root, true))
	defer f.Release()
	done := make(chan struct{}, 2)
	write := func() { f.Written(); done <- struct{}{} }
	go write()
	<-entered
	go write()
	select {
	case <-entered: // the second tells it, too
	case <-done:
		close(proceed)
		t.Fatal("the second write completed before the kernel knew of the first")
	}
	close(proceed)
	<-done
	<-done
	f.Written()
	if len(entered) != 0 {
		t.Error("the kernel was told again")
	}
}

// However long the kernel may keep attributes, a ring write invalidates them,
// even if the kernel's clock for them starts later than ours.
func TestAnyTimeoutIsInvalidated(t *testing.T) {
	for _, keep := range []time.Duration{time.Nanosecond, time.Hour, 1<<63 - 1} {
		calls := 0
		tr, _ := newTree(t, Options{Invalidate: func(uint64, bool) { calls++ }})
		e, h := create(t, tr, RootID, "f", root, 0o600)
		if got := must(tr.Getattr(e.ID, keep)); got.Keep != keep {
			t.Errorf("keep %v: got %v", keep, got.Keep)
		}
		time.Sleep(time.Microsecond)
		f := must(tr.Acquire(e.Attr.Ino, root, true))
		f.Written()
		f.Release()
		h.Close()
		if calls != 1 {
			t.Errorf("keep %v: %d invalidations", keep, calls)
		}
	}
}
