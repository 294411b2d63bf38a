package tree

import (
	"time"

	"golang.org/x/sys/unix"
)

// Waiting says how a call may wait for room. nil: it may, and nothing ends it before its time.
type Waiting struct {
	// Cancel ends the waiting with EINTR when it is closed.
	Cancel <-chan struct{}
	// Begin is called before the waiting begins, if there is any. Its error is the call's.
	Begin func() error
	// End is called when there is room, if there was any waiting. Its error is the call's, which then has changed nothing.
	End func() error

	begun bool
}

// forRoom calls reserve, whose EAGAIN says that there is no room now, and has it wait then.
func (w *Waiting) forRoom(reserve func(deadline time.Time, cancel <-chan struct{}) (int64, error)) (reserved int64, err error) {
	if reserved, err = reserve(time.Time{}, nil); err != unix.EAGAIN {
		return reserved, err
	}
	if w != nil && w.Begin != nil {
		if err := w.Begin(); err != nil {
			return 0, err
		}
		w.begun = true
	}
	return reserve(time.Now().Add(writePatience), w.cancel())
}

// over is called when there is room.
func (w *Waiting) over() error {
	if w == nil || !w.begun || w.End == nil {
		return nil
	}
	return w.End()
}

func (w *Waiting) cancel() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.Cancel
}
