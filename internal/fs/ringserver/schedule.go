package ringserver

import (
	"slices"
	"sync/atomic"
)

// A poller gives its workers a batch at a time. The next batch is the turn of the user
// who has waited longest, then of that user's ring, then of that ring's request: a large
// request goes to the end of its ring's queue after each piece. So what one user submits
// costs another one at most a batch for each worker.
const (
	// pieceBytes is how much of a request is moved in one turn: about 100 µs of copying.
	pieceBytes = 1 << 20
	// slowPieceBytes is the same for rings that wait for a device, which is faster with
	// large calls. It bounds how long a request runs past its deadline and how much memory
	// it takes to detach its buffer.
	slowPieceBytes = 4 << 20

	// inflightBytes bounds what workers move at once for one user, to what keeps a fast
	// device busy: every copy in progress delays the other users' threads. More workers
	// than 64 raise it, by workerBytes each.
	inflightBytes = 16 << 20
	workerBytes   = inflightBytes / 64

	// mostAdmitted bounds the requests of one user and priority that are admitted at once.
	mostAdmitted = 1 << 16
)

// user has the rings of one uid in a poller. All fields are guarded by poller.mu, except
// those that say otherwise.
type user struct {
	uid   uint32
	rings []*ring

	next     int     // position in rings of the next one to look at
	unlooked int     // rings to look at, counted from next
	backlog  []*ring // rings that may have queued requests, in the order of their turns

	ready  bool  // in poller.ready
	inTurn bool  // a worker looks at the rings or takes from them; no other does
	jobs   int   // with workers
	bytes  int64 // being moved by workers that are not stuck
	stuck  int   // workers that are stuck in requests

	slowLooks int   // how many looks in a row were slow
	lookAfter int64 // a user whose looks are slow is not looked at before

	admitted atomic.Int64 // requests admitted and not answered
	held     atomic.Bool  // a ring waits until some of them are answered

	expiring chan struct{} // holds a value for each ring that is being expired
}

// job is a batch of requests of one ring, for one worker.
type job struct {
	ring  *ring // nil: there is no work
	batch []*request
	bytes int64
	share bool // enough is left for another worker
	more  bool // there is no work, but not all rings have been looked at
}

// add makes the poller serve r.
func (p *poller) add(r *ring) {
	p.submit.pin(semsKey{r.cred.UID, r.shm})
	p.mu.Lock()
	u := p.users[r.cred.UID]
	if u == nil {
		u = &user{uid: r.cred.UID, expiring: make(chan struct{}, mostExpiring)}
		p.users[u.uid] = u
	}
	r.user = u
	u.rings = append(u.rings, r)
	p.markLocked(u)
	p.mu.Unlock()
	p.wake() // without rings, the leader waits for idleWait
}

// remove takes r out of the poller. Workers that have it may still look at it: it is
// closed or broken by then, or will be.
func (p *poller) remove(r *ring) {
	p.mu.Lock()
	u := p.users[r.cred.UID]
	i := -1
	if u != nil {
		i = slices.Index(u.rings, r)
	}
	if i < 0 {
		p.mu.Unlock()
		return
	}
	u.rings = slices.Delete(u.rings, i, i+1)
	if at := slices.Index(u.backlog, r); at >= 0 {
		u.backlog = slices.Delete(u.backlog, at, at+1)
		r.listed = false
		p.listed--
	}
	// The others have moved: look at all of them, so that none is skipped.
	p.markLocked(u)
	p.forgetLocked(u)
	p.mu.Unlock()
	p.submit.unpin(semsKey{r.cred.UID, r.shm})
}

// forgetLocked forgets a user without rings, though not while workers are busy for it: it
// would get a fresh share with its next ring.
func (p *poller) forgetLocked(u *user) {
	if len(u.rings) == 0 && u.jobs == 0 && !u.inTurn && p.users[u.uid] == u {
		delete(p.users, u.uid)
	}
}

// markLocked has all rings of u looked at. The caller holds mu.
func (p *poller) markLocked(u *user) {
	if u.lookAfter != 0 && p.server.clock.now() < u.lookAfter {
		return
	}
	u.unlooked = len(u.rings)
	p.pushLocked(u)
}

// mark has all rings of u looked at.
func (p *poller) mark(u *user) {
	p.mu.Lock()
	p.markLocked(u)
	p.mu.Unlock()
	p.wake()
}

// list has a worker take from r.
func (p *poller) list(r *ring) {
	p.mu.Lock()
	p.listLocked(r)
	p.mu.Unlock()
	p.wake()
}

func (p *poller) listLocked(r *ring) {
	u := p.users[r.cred.UID]
	if r.listed || u == nil || u != r.user {
		return
	}
	r.listed = true
	p.listed++
	u.backlog = append(u.backlog, r)
	p.pushLocked(u)
}

// pushLocked puts u at the end of the queue if it has something for a worker to do.
func (p *poller) pushLocked(u *user) {
	if !u.ready && !u.inTurn && (u.unlooked > 0 || len(u.backlog) > 0 && p.mayWork(u)) {
		u.ready = true
		p.ready = append(p.ready, u)
	}
}

// mayWork reports whether another worker may work for u.
func (p *poller) mayWork(u *user) bool {
	return u.bytes < p.inflightBytes && u.stuck < p.mostStuckOf()
}

// collect marks the users who have posted, and all users at least each pollEvery.
func (p *poller) collect(w *worker, now int64) {
	w.posted = p.waiter.posted(w.posted[:0])
	all := now-p.lookedAll.Load() >= int64(pollEvery)
	if len(w.posted) == 0 && !all {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if all {
		p.lookedAll.Store(now)
		for _, u := range p.users {
			p.markLocked(u)
		}
		return
	}
	for _, uid := range w.posted {
		if u := p.users[uid]; u != nil {
			p.markLocked(u)
		}
	}
}

// take returns the next batch for w. Each ready user has at most one turn.
func (p *poller) take(w *worker) job {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server.paused.Load() {
		return job{}
	}
	for n := len(p.ready); n > 0 && len(p.ready) > 0; n-- {
		u := p.ready[0]
		p.ready = p.ready[:copy(p.ready, p.ready[1:])]
		u.ready, u.inTurn = false, true
		j := p.turn(w, u)
		u.inTurn = false
		if j.ring != nil {
			u.jobs++
			u.bytes += j.bytes
			j.share = j.share || len(p.ready) > 0
			p.pushLocked(u)
			w.begin(j)
			return j
		}
		p.pushLocked(u)
		p.forgetLocked(u)
	}
	return job{more: len(p.ready) > 0}
}

// turn looks at some of the user's rings and takes a batch from one. The caller holds mu,
// which is released while a client's memory is touched.
func (p *poller) turn(w *worker, u *user) job {
	if u.unlooked > 0 {
		p.look(w, u)
	}
	for n := len(u.backlog); n > 0 && len(u.backlog) > 0 && p.mayWork(u); n-- {
		r := u.backlog[0]
		u.backlog = u.backlog[:copy(u.backlog, u.backlog[1:])]
		r.listed = false
		p.listed--
		if r.stuck >= mostStuckPerRing {
			continue // listed again when one of them ends
		}
		others := p.listed > 0
		p.mu.Unlock()
		batch, bytes, left := r.take(w.batch[:0])
		p.mu.Lock()
		if len(batch) > 0 {
			w.batch = batch
			if r.backlog.Load() {
				p.listLocked(r)
			}
			return job{ring: r, batch: batch, bytes: bytes, share: others || left >= sharedBytes}
		}
	}
	return job{}
}

// finish ends a job that take returned.
func (p *poller) finish(w *worker, j job, again bool) {
	p.mu.Lock()
	u := j.ring.user
	w.end(u, j)
	if again {
		p.listLocked(j.ring)
	}
	u.jobs--
	p.pushLocked(u) // it may have been waiting for this
	p.forgetLocked(u)
	waiting := len(p.ready)
	p.mu.Unlock()
	// The worker itself looks for one of them next, unless another has taken its place.
	if waiting > 1 || waiting > 0 && w.replaced {
		p.wake()
	}
}
