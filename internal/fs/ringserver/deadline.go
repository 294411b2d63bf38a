package ringserver

import (
	"context"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
)

const (
	// An iov that no request has used for forgetPagesAfter is dropped from the
	// daemon's page table (not from the client's memory), so that the daemon's
	// resident size does not grow with the iovs.
	forgetPagesAfter = 5 * time.Second

	// A batch that is not complete after rescueAfter counts as stuck in one of its
	// requests.
	rescueAfter = 50 * time.Millisecond
)

// tickRings calls tick for every ring at short intervals until ctx ends. It also forgets
// the pages of idle iovs.
func (s *Server) tickRings(ctx context.Context) {
	tick := time.NewTicker(max(s.opts.Deadline/20, time.Millisecond))
	defer tick.Stop()
	lastForget := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, p := range s.pollers {
				for _, r := range p.snapshot() {
					expired, work := r.tick(now, now.Add(-s.opts.Deadline))
					if work {
						p.wake()
					}
					if expired > 0 {
						s.log.Warn("requests timed out: the data directory's file system does not answer",
							"requests", expired, "deadline", s.opts.Deadline, "uid", r.cred.UID)
					}
				}
			}
			if now.Sub(lastForget) > forgetPagesAfter {
				lastForget = now
				s.forgetPages(now.Add(-forgetPagesAfter).Unix())
			}
		}
	}
}

// tick does for a ring what its workers cannot do while they are stuck. It admits
// waiting requests, so that their deadlines begin. It requeues what stuck workers
// have not begun and answers what they have finished. It answers requests admitted
// before limit with ETIMEDOUT; nothing writes to their buffers from then on. It
// returns how many expired and whether work is waiting for a worker.
func (r *ring) tick(now, limit time.Time) (expired int, work bool) {
	r.mu.Lock()
	defer r.unlock()
	if r.closed || r.broken != nil {
		return 0, false
	}
	if err := shm.Guard(func() {
		r.admit()
		if r.broken == nil {
			r.rescue(now.Add(-rescueAfter))
			expired = r.expire(limit)
		}
	}); err != nil {
		r.breakLocked(err)
	}
	if len(r.queued) > 0 {
		r.slow.Store(true) // the workers that should have come for it are stuck
	}
	r.backlog.Store(len(r.queued) > 0)
	return expired, len(r.queued) > 0
}

// rescue separates the requests of batches taken before limit from the one that
// their worker is stuck in.
func (r *ring) rescue(limit time.Time) {
	posted := false
	for q := r.inflight.first; q != nil; {
		next := q.next
		switch {
		case q.state.Load() == stateQueued || !q.takenAt.Before(limit):
		case q.state.CompareAndSwap(stateDone, stateAnswered):
			r.post(q, q.result)
			posted = true
		case q.state.CompareAndSwap(stateTaken, stateReplaced):
			again := r.newRequest()
			again.index, again.userdata, again.args = q.index, q.userdata, q.args
			again.badIndex, again.admitted = q.badIndex, q.admitted
			r.inflight.replace(q, again)
			r.enqueue(again)
		}
		q = next
	}
	if posted {
		r.publish()
	}
}

// expire decides which requests have expired, those admitted before limit, and answers
// them.
func (r *ring) expire(limit time.Time) (expired int) {
	posted := false
	for q := r.inflight.first; q != nil && q.admitted.Before(limit); q = r.inflight.first {
		before := q.state.Swap(stateAnswered)
		if invariants.Enabled {
			invariants.Check(before < stateAnswered || before == stateAnswered && q.needsDetach, "request %d: expired in state %d", q.index, before)
		}
		if before == stateDone {
			r.post(q, q.result)
			posted = true
			continue
		}
		if before == stateRunning || q.needsDetach {
			moved := q.moved.Load()
			if err := q.iov.detach(q.view, q.off+moved, min(q.len-moved, pieceBytes), r.write); err != nil {
				// Not answered while the kernel can reach its buffer; the next tick retries.
				r.server.log.Error("cannot detach the buffer of a stuck request", "err", err)
				q.needsDetach = true
				break
			}
			q.needsDetach = false
		}
		r.post(q, -int64(syscall.ETIMEDOUT))
		posted = true
		expired++
	}
	if posted {
		r.publish()
	}
	// Requests that waited for a worker are answered now and must not be executed.
	// Those with a worker return through complete.
	kept := r.queued[:0]
	for _, q := range r.queued {
		if q.state.Load() == stateAnswered {
			r.queuedBytes -= q.args.Len
			r.recycle(q)
		} else {
			kept = append(kept, q)
		}
	}
	r.queued = kept
	return expired
}

// forgetPages drops page-table entries of iovs last used at or before the given
// unix second.
func (s *Server) forgetPages(before int64) {
	s.table.buffers.Range(func(_, v any) bool {
		buf := v.(*iov)
		if used := buf.lastUse.Load(); used != 0 && used <= before && buf.lastUse.CompareAndSwap(used, 0) {
			if w := buf.acquire(); w != nil {
				w.m.ForgetPages()
				w.release()
			}
		}
		return true
	})
}
