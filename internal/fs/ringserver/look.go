package ringserver

import "time"

const (
	// looksPerTurn and lookFor bound how long a turn looks at a user's rings.
	looksPerTurn = 64
	lookFor      = time.Millisecond
	// admittedPerTurn ends a turn's looks: copying more out of a client's reach takes
	// longer than a batch.
	admittedPerTurn = 256

	// slowLook is a look that waited for the client's memory: its owner punches holes into
	// it, or it was swapped out. A user with slowLooksInARow is looked at each pollEvery,
	// by a worker that does not lead, until a look is fast again.
	slowLook        = 5 * time.Millisecond
	slowLooksInARow = 2
)

// look admits what the next rings of u have submitted. The caller holds mu, which is
// released meanwhile: client memory is touched under the lock of its ring only.
func (p *poller) look(w *worker, u *user) {
	w.looks = w.looks[:0]
	for len(w.looks) < looksPerTurn && u.unlooked > 0 {
		if u.next >= len(u.rings) {
			u.next = 0
		}
		w.looks = append(w.looks, u.rings[u.next])
		u.next++
		u.unlooked--
	}
	slow := u.slowLooks >= slowLooksInARow
	p.mu.Unlock()

	if slow {
		p.handOver(w)
	}
	start := time.Now()
	took := time.Duration(0)
	n := 0
	for admitted := 0; n < len(w.looks) && admitted < admittedPerTurn && took < lookFor; n++ {
		admitted += w.looks[n].look()
		took = time.Since(start)
	}

	p.mu.Lock()
	for _, r := range w.looks[:n] {
		if r.backlog.Load() {
			p.listLocked(r)
		}
	}
	if n < len(w.looks) {
		// Rings may have come and gone meanwhile, so begin a new round where this one ends.
		u.next = max(u.next-(len(w.looks)-n), 0)
		u.unlooked = len(u.rings)
	}
	if took < slowLook {
		u.slowLooks, u.lookAfter = 0, 0
		return
	}
	if u.slowLooks++; u.slowLooks >= slowLooksInARow {
		u.unlooked = 0
		u.lookAfter = p.server.clock.now() + int64(pollEvery)*3/4
	}
}

// look admits what the client has submitted and returns how many requests that were.
func (r *ring) look() (admitted int) {
	if !r.tryLock() {
		return 0
	}
	defer r.unlock()
	if r.closed || r.broken != nil {
		return 0
	}
	before := r.inflight.n
	r.admitGuarded()
	return r.inflight.n - before
}

// tryLock locks the ring unless somebody else has. A worker never waits for a ring:
// whoever has it may be waiting for the client's memory. Then that one has the poller try
// again.
func (r *ring) tryLock() bool {
	if r.mu.TryLock() {
		return true
	}
	r.missed.Store(true)
	return r.mu.TryLock()
}
