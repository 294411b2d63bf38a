package blockfiles

import (
	"container/list"
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// drafts keeps the files of unfinished blocks open between their shards, for as long as
// nobody needs their places.
type drafts struct {
	*places

	mu      sync.Mutex
	resting list.List // of *temporary: open, and not being written to; the longest first
}

// draft is the part of a temporary that the lock of drafts guards.
type draft struct {
	file  transfer.File // nil while it is closed
	users int
	rest  *list.Element
}

// add takes over the file of a new block, and the place it takes.
func (d *drafts) add(t *temporary, f transfer.File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t.file = f
	t.rest = d.resting.PushBack(t)
}

// use keeps the file of a block open until doneWriting, and returns nil if it is closed. It
// then takes over another one, if there is one.
func (d *drafts) use(t *temporary, another transfer.File) transfer.File {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.file == nil {
		t.file = another
	}
	if t.file == nil {
		return nil
	}
	if t.rest != nil {
		d.resting.Remove(t.rest)
		t.rest = nil
	}
	t.users++
	return t.file
}

// take returns the file of a block, if it is open, for the caller to close, and then to
// leave its place.
func (d *drafts) take(t *temporary) transfer.File {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.takeLocked(t)
}

// takeResting is take for the file that has rested longest.
func (d *drafts) takeResting() transfer.File {
	d.mu.Lock()
	defer d.mu.Unlock()
	first := d.resting.Front()
	if first == nil {
		return nil
	}
	return d.takeLocked(first.Value.(*temporary))
}

func (d *drafts) takeLocked(t *temporary) transfer.File {
	f := t.file
	t.file = nil
	if t.rest != nil {
		d.resting.Remove(t.rest)
		t.rest = nil
	}
	return f
}

// doneWriting ends a use of a file.
func (s *Store) doneWriting(t *temporary) {
	d := &s.drafts
	d.mu.Lock()
	var f transfer.File
	t.users--
	invariants.Check(t.users >= 0, "%s has %d users", t.path, t.users)
	if t.users == 0 && t.file != nil {
		if d.waiting.Load() > 0 {
			f = d.takeLocked(t)
		} else {
			t.rest = d.resting.PushBack(t)
		}
	}
	d.mu.Unlock()
	s.closeDraft(f)
}

// closeDraft closes a file and then leaves its place. An error is ignored: what the file
// lacks its checksums tell.
func (s *Store) closeDraft(f transfer.File) {
	if f != nil {
		s.opens.Go(workerpool.Job{Run: func() { _ = f.Close() }, Done: func(error) { s.drafts.leave() }})
	}
}

// closeAgain is how often a batch that waits for a place closes another file. One that was
// made meanwhile may be at rest for as long as its batch waits, which may be the same one.
const closeAgain = 20 * time.Millisecond

// waitForDraft waits for a place and, if it must, closes files that nobody writes to.
func (s *Store) waitForDraft(ctx context.Context) error {
	d := &s.drafts
	if d.try() {
		return nil
	}
	d.waiting.Add(1) // from now on files are closed when they come to rest
	defer d.waiting.Add(-1)
	waited := make(chan struct{})
	var closing sync.WaitGroup
	closing.Go(func() {
		again := time.NewTicker(closeAgain)
		defer again.Stop()
		for {
			s.closeDraft(d.takeResting())
			select {
			case <-waited:
				return
			case <-again.C:
			}
		}
	})
	defer closing.Wait()
	defer close(waited)
	return d.wait(ctx)
}

// useDraft is use, and opens a file that was closed. Until doneWriting it stays open.
func (s *Store) useDraft(ctx context.Context, t *temporary) (transfer.File, error) {
	if f := s.drafts.use(t, nil); f != nil {
		return f, nil
	}
	if err := s.waitForDraft(ctx); err != nil {
		return nil, err
	}
	var f transfer.File
	var err error
	result := make(chan error, 1)
	s.opens.Go(workerpool.Job{
		Context: ctx,
		Run:     func() { f, err = s.reopen(t) },
		Done: func(failed error) {
			if failed == nil {
				failed = err
			}
			result <- failed
		},
		Late: func() {
			if err == nil {
				_ = f.Close()
			}
			s.drafts.leave()
		},
	})
	if err := <-result; err != nil {
		if err != workerpool.ErrOverdue {
			s.drafts.leave()
		}
		return nil, err
	}
	used := s.drafts.use(t, f)
	if used != f { // another batch was faster
		s.closeDraft(f)
	}
	return used, nil
}

// reopen opens the file of an unfinished block again.
func (s *Store) reopen(t *temporary) (transfer.File, error) {
	f, err := s.retryOpen(func() (*os.File, error) {
		return os.OpenFile(t.path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	})
	if err != nil {
		return nil, err
	}
	st, err := status(int(f.Fd()), "")
	if err == nil && st.Ino != t.ino {
		err = &os.PathError{Op: "open", Path: t.path, Err: unix.ESTALE}
	}
	var file transfer.File
	if err == nil {
		file, err = s.engine.Open(f)
	}
	if err != nil {
		f.Close()
	}
	return file, err
}
