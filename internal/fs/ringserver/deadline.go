package ringserver

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
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

	// tickEvery bounds how late a deadline is noticed.
	tickEvery = 25 * time.Millisecond

	// mostExpiring is how many rings of one user are attended to at once. Each may wait for
	// its client's memory.
	mostExpiring = 8
)

// tickRings finds, at short intervals until ctx ends, the rings with requests that have
// expired or are stuck. It touches no ring itself: others see to them, each ring for
// itself, so that none waits for another. It also forgets the pages of idle iovs.
func (s *Server) tickRings(ctx context.Context) {
	tick := time.NewTicker(max(min(s.opts.Deadline/20, tickEvery), time.Millisecond))
	defer tick.Stop()
	var attending sync.WaitGroup
	defer attending.Wait()
	var lastForget int64
	var forgetting atomic.Bool
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.clock.tick()
		for _, p := range s.pollers {
			if w := p.leader.Load(); w != nil {
				p.takeLead(w, tickEvery) // it waits for the memory of a client
			}
			rings := p.watch(now)
			rings = p.due(rings, now-int64(s.opts.Deadline))
			for _, r := range rings {
				if r.expiring.CompareAndSwap(false, true) {
					attending.Go(func() { r.attend(now) })
				}
			}
		}
		if now-lastForget > int64(forgetPagesAfter) && forgetting.CompareAndSwap(false, true) {
			lastForget = now
			// It takes seconds for large iovs, and deadlines must not wait for it.
			attending.Go(func() {
				defer forgetting.Store(false)
				s.forgetPages(time.Now().Add(-forgetPagesAfter).Unix())
			})
		}
	}
}

// due appends the rings with requests that were admitted before limit.
func (p *poller) due(rings []*ring, limit int64) []*ring {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.users {
		for _, r := range u.rings {
			if oldest := r.oldest.Load(); oldest != 0 && oldest < limit {
				rings = append(rings, r)
			}
		}
	}
	return rings
}

// attend does for a ring what its workers cannot do while they are stuck. It queues again
// what stuck workers have not begun and answers what they have finished. It answers
// requests that have expired with ETIMEDOUT; nothing writes to their buffers from then
// on.
func (r *ring) attend(now int64) {
	r.user.expiring <- struct{}{}
	defer func() { <-r.user.expiring }()
	defer r.expiring.Store(false)
	s := r.server
	var late overdue
	r.mu.Lock()
	if !r.closed && r.broken == nil {
		err := shm.Guard(func() {
			r.rescue(now - int64(stuckFor))
			late = r.expire(now - int64(s.opts.Deadline))
		})
		if err != nil {
			r.breakLocked(err)
		}
	}
	queued := len(r.queued) > 0
	r.unlock()
	if queued {
		r.poller.list(r)
	}
	if late.requests > 0 {
		s.opts.Health.Doubt()
		cause, cure := late.why(r.poller.stuckWorkers())
		if more, now := s.pace.Log(fmt.Sprint("timeout ", r.cred.UID, " ", cause)); now {
			s.log.Warn("requests timed out", "cause", cause, "requests", late.requests, "begun", late.begun, "deadline", s.opts.Deadline, "uid", r.cred.UID, "cure", cure, "more", more)
		}
	}
}

// overdue is how many requests of a ring have met their deadline, and how many of them a worker had begun.
type overdue struct{ requests, begun int }

// why returns why they did, and what to do about it. stuck is how many workers are stuck.
func (e overdue) why(stuck int) (cause, cure string) {
	const look = "look at its servers, its disk and the network"
	switch {
	case e.begun > 0:
		return "the data directory's file system does not answer", look
	case stuck > 0:
		return "their turn did not come: workers wait for the data directory's file system, or for room", look + ", and at kv3fs stat"
	}
	return "their turn did not come: other requests kept all workers busy", "more --workers, a faster disk, or fewer requests at once"
}

// rescue separates the requests of batches taken before limit from the one that
// their worker is stuck in.
func (r *ring) rescue(limit int64) {
	posted := false
	for q := r.inflight.first; q != nil; {
		next := q.next
		switch {
		case q.state.Load() == stateQueued || q.takenAt >= limit:
		case q.state.CompareAndSwap(stateDone, stateAnswered):
			r.post(q, q.result)
			posted = true
		case q.state.CompareAndSwap(stateTaken, stateReplaced):
			again := r.newRequest()
			again.index, again.userdata, again.args, again.slot = q.index, q.userdata, q.args, q.slot
			again.badIndex, again.admitted, again.lay, again.begun = q.badIndex, q.admitted, q.lay, q.begun
			again.countedIn.Store(q.countedIn.Load())
			if q.view != nil {
				again.iov, again.view, again.off, again.len = q.iov, q.view.hold(), q.off, q.len
				again.moved.Store(q.moved.Load())
			}
			r.inflight.replace(q, again)
			again.spent, again.waitsAt = q.spent, q.takenAt
			r.enqueue(again)
		}
		q = next
	}
	if posted {
		r.publish()
	}
}

// expire decides which requests have expired, those admitted before limit, and answers
// them. Those whose buffer the kernel may be using come last, because detaching it takes
// a while.
func (r *ring) expire(limit int64) (late overdue) {
	posted := false
	var running []*request
	var next *request
	for q := r.inflight.first; q != nil && q.admitted < limit; q = next {
		next = q.next
		before := q.state.Swap(stateAnswered)
		if before < stateDone {
			q.expiredIn = before
		}
		if invariants.Enabled {
			invariants.Check(before < stateAnswered || before == stateAnswered && q.needsDetach, "request %d: expired in state %d", q.index, before)
		}
		switch {
		case before == stateRunning || q.needsDetach:
			q.needsDetach = true
			running = append(running, q)
			continue
		case before == stateDone:
			r.post(q, q.result)
		default:
			r.post(q, -int64(syscall.ETIMEDOUT))
			r.noteExpired()
			late.requests++
			if before == stateBegun && !q.awaitsRoom.Load() {
				late.begun++
			}
		}
		posted = true
	}
	if posted {
		r.publish()
	}
	r.dropAnswered()
	for _, q := range running {
		moved := q.moved.Load()
		if err := q.iov.detach(q.view, q.off+moved, min(q.len-moved, q.piece), r.write); err != nil {
			// Not answered while the kernel can reach its buffer; the next tick retries.
			r.server.log.Error("cannot detach the buffer of a stuck request", "err", err)
			continue
		}
		q.needsDetach = false
		r.post(q, -int64(syscall.ETIMEDOUT))
		r.noteExpired()
		r.publish()
		late.requests++
		late.begun++
	}
	return late
}

// dropAnswered removes from the queue the requests that were answered there: they must
// not be executed. Those with a worker return through complete.
func (r *ring) dropAnswered() {
	kept := r.queued[:0]
	for _, q := range r.queued {
		if q.state.Load() == stateAnswered {
			r.queuedBytes -= q.piece
			r.recycle(q)
		} else {
			kept = append(kept, q)
		}
	}
	clear(r.queued[len(kept):])
	r.queued = kept
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
