package ringserver

import (
	"errors"
	"syscall"
	"time"
)

// A write may have to wait until something else is removed, where the space is limited. That is
// no reason for others to wait: a worker that waits for room counts as stuck from the start,
// and so another takes its place, and how many may wait is bounded for each file, ring and
// user.

// reserve takes room for the next piece of a write. It waits no longer than until shortly
// before the request's deadline, so that its client learns that there was none.
func (s *Server) reserve(w *worker, r *ring, q *request, b *borrowed) (reserved int64, err error) {
	if !r.write {
		return 0, nil
	}
	moved := q.moved.Load()
	off, n := int64(q.args.FileOff)+moved, q.turn()
	if reserved, err = b.file.Reserve(off, n, time.Time{}, nil); !errors.Is(err, syscall.EAGAIN) {
		return reserved, err
	}
	left := s.opts.Deadline - time.Duration(s.clock.now()-q.admitted)
	b.settle() // others may be waiting for what this batch has taken too much
	r.poller.awaitsRoom(w)
	q.awaitsRoom.Store(true)
	defer q.awaitsRoom.Store(false)
	return b.file.Reserve(off, n, time.Now().Add(left-s.opts.Deadline/roomPart), nil)
}

// roomPart is the part of a request's time that is kept for its answer.
const roomPart = 8

// awaitsRoom has another worker take the place of w, which is about to wait.
func (p *poller) awaitsRoom(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.stuck {
		return
	}
	w.seenStep, w.seenAt = w.step.Load(), p.server.clock.now()
	w.batchWaits = true
	p.markStuck(w)
}

// settle says what the borrowed file takes after the writes to it.
func (b *borrowed) settle() {
	if b.grew {
		b.file.Settle(b.reserved)
		b.grew, b.reserved = false, 0
	}
}
