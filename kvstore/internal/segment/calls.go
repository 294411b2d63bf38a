package segment

import (
	"context"
	"errors"

	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// callers is how many of the store's own calls into the kernel are under way at once:
// those that write headers and indexes, and fdatasync.
const callers = 4

// call runs such a call for a segment and waits for it, at most for the store's timeout.
// A call that has not returned by then may still write at any time, so the segment stays
// pinned until it returns.
func (s *Store) call(seg *segment, do func() error) error {
	seg.pins.Add(1)
	var failed error
	done := make(chan error, 1)
	s.calls.Go(workerpool.Job{
		Context: context.Background(),
		Run:     func() { failed = do() },
		Done: func(err error) {
			if err == nil {
				err = failed
			}
			done <- err
		},
		Late: func() { s.unpin(seg) },
	})
	err := <-done
	if !errors.Is(err, workerpool.ErrOverdue) {
		s.unpin(seg)
	}
	return err
}

// writeAt writes to a segment what is not a block.
func (s *Store) writeAt(seg *segment, raw []byte, offset int64) error {
	return s.call(seg, func() error {
		_, err := seg.file.WriteAt(raw, offset)
		return err
	})
}

// flush has the device write a segment.
func (s *Store) flush(seg *segment) error {
	return s.call(seg, func() error { return s.o.fdatasync(seg.file) })
}
