package rings

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// What one worker takes from a ring at once, and completes with one post: about
// 50 µs of copying, against the 5 to 10 µs that waking a client costs.
const (
	quantumRequests = 32
	quantumBytes    = 512 << 10
)

// ring is one client's I/O ring. Its markers are kept here, the memory shared
// with the client only shows them.
type ring struct {
	door   *Door
	lane   *lane
	cred   cred.Caller
	layout wire.Layout
	write  bool
	depth  int32
	batch  time.Duration // how long a negative depth waits for more; 0: not at all
	flags  uint64

	// seen is sqeTail, for peeking without the lock.
	seen atomic.Int32
	// backlog says that queued is not empty, for the same purpose.
	backlog atomic.Bool
	// slow says that requests of this ring lately waited for a device: each then
	// wants a worker of its own.
	slow atomic.Bool

	mu       sync.Mutex
	m        *shm.Mapping // nil once closed and idle
	sem      shm.Sem
	sqeTail  int32 // first submission slot not yet taken
	cqeHead  int32 // next completion slot to fill
	queued   []*request
	inflight list // admitted and not completed, oldest first
	holds    int  // why m must stay mapped: the registration, and requests with workers
	closed   bool // unregistered: take no more
	broken   error
	partial  time.Time // since when fewer than a batch wait; zero: none do
	timer    *time.Timer
	spare    []*request
}

// request is one admitted operation: our own copy of what the client asked.
type request struct {
	index    int32
	userdata uint64
	args     wire.Args
	refused  bool // the index is none of the ring's: answer EINVAL
	admitted time.Time
	result   int64 // the worker's, once it has the request

	// state belongs to whoever moves it on: a worker from queued to running, the
	// deadline from either to expired.
	state atomic.Int32

	// Where the worker moves bytes, set before it is running.
	iov *iov
	win *view
	off int64
	len int64

	prev, next *request
}

const (
	stateQueued = iota
	stateRunning
	stateExpired
)

func newRing(d *Door, link wire.Link, c cred.Caller, layout wire.Layout, m *shm.Mapping) (*ring, error) {
	r := &ring{
		door: d, lane: d.lane(link.Priority), cred: c, layout: layout, m: m, sem: m.Sem(layout.SemOff()), holds: 1,
		write: link.Write, depth: link.IODepth, flags: link.Flags,
	}
	if link.IODepth < 0 && link.TimeoutMs > 0 {
		r.batch = time.Duration(link.TimeoutMs) * time.Millisecond
		r.timer = time.AfterFunc(time.Hour, r.lane.wake)
		r.timer.Stop()
	}
	err := shm.Guard(func() {
		r.sem.Init()
		// Zero in a fresh object; whatever else the client left there is taken
		// once and never read back.
		r.sqeTail = m.LoadInt32(wire.OffSqeTail)
		r.cqeHead = m.LoadInt32(wire.OffCqeHead)
	})
	if err != nil || !layout.Valid(r.sqeTail) || !layout.Valid(r.cqeHead) {
		return nil, syscall.EINVAL
	}
	r.seen.Store(r.sqeTail)
	return r, nil
}

// peek tells cheaply whether take might find something. Call it inside
// shm.Guard and only where the ring cannot be unmapped meanwhile (lane.peek).
func (r *ring) peek() bool {
	return r.backlog.Load() || r.m.LoadInt32(wire.OffSqeHead) != r.seen.Load()
}

// take admits what the client has submitted and hands a quantum of it to the
// calling worker, which must give it back to complete. left is how many bytes
// are left to ask for.
func (r *ring) take(batch []*request) (_ []*request, left uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.broken != nil {
		return batch, 0
	}
	if err := shm.Guard(r.admit); err != nil {
		r.breakLocked(err)
	}
	var bytes uint64
	n, most := 0, quantumRequests
	if r.slow.Load() {
		most = 1
	}
	for ; n < len(r.queued) && n < most && bytes < quantumBytes; n++ {
		bytes += r.queued[n].args.Len
		batch = append(batch, r.queued[n])
	}
	r.queued = r.queued[:copy(r.queued, r.queued[n:])]
	r.backlog.Store(len(r.queued) > 0)
	if len(batch) > 0 {
		r.holds++
	}
	for _, q := range r.queued {
		left += q.args.Len
	}
	return batch, left
}

// admit copies requests out of the client's reach, as many as the io_depth rule
// (4.7) and the room for completions allow.
func (r *ring) admit() {
	head := r.m.LoadInt32(wire.OffSqeHead)
	cqeTail := r.m.LoadInt32(wire.OffCqeTail)
	if !r.layout.Valid(head) || !r.layout.Valid(cqeTail) {
		r.breakLocked(fmt.Errorf("markers out of range: sqe_head %d, cqe_tail %d, ring length %d", head, cqeTail, r.layout.RingLen))
		return
	}
	waiting := r.layout.Count(r.sqeTail, head)
	room := int32(r.layout.Entries()-r.inflight.n) - r.layout.Count(cqeTail, r.cqeHead)
	n := min(waiting, room)
	switch {
	case n <= 0:
		n = 0
	case r.depth > 0:
		n -= n % r.depth
	case r.batch > 0:
		n = r.admitPartial(n)
	}
	if n == 0 {
		return
	}
	now := time.Now()
	var sqe [wire.SqeBytes]byte
	var args [wire.ArgsBytes]byte
	for range n {
		r.m.CopyOut(sqe[:], r.layout.SqeOff(r.sqeTail))
		var s wire.Sqe
		s.Decode(&sqe)
		q := r.newRequest()
		q.index, q.userdata, q.admitted = s.Index, s.Userdata, now
		if r.layout.Valid(s.Index) {
			r.m.CopyOut(args[:], r.layout.ArgsOff(s.Index))
			q.args.Decode(&args)
		} else {
			q.refused = true
		}
		r.sqeTail = r.layout.Next(r.sqeTail)
		r.inflight.push(q)
		r.queued = append(r.queued, q)
	}
	r.m.StoreInt32(wire.OffSqeTail, r.sqeTail)
	r.seen.Store(r.sqeTail)
}

// admitPartial applies the rule of a negative depth with a timeout: full batches
// at once, the rest when its time has come.
func (r *ring) admitPartial(n int32) int32 {
	size := min(-r.depth, int32(r.layout.Entries()))
	rest := n % size
	if rest == 0 {
		r.partial = time.Time{}
		return n
	}
	now := time.Now()
	if r.partial.IsZero() || n > rest {
		r.partial = now
	}
	if wait := r.batch - now.Sub(r.partial); wait > 0 {
		r.timer.Reset(wait)
		return n - rest
	}
	r.partial = time.Time{}
	return n
}

// complete posts the completions of a batch that take handed out, but for those
// that the deadline has answered already.
func (r *ring) complete(batch []*request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := shm.Guard(func() {
		posted := false
		for _, q := range batch {
			if q.state.Load() != stateExpired {
				r.post(q, q.result)
				posted = true
			}
		}
		if posted {
			r.publish()
		}
	})
	if err != nil {
		r.breakLocked(err)
	}
	for _, q := range batch {
		r.recycle(q)
	}
	r.unhold()
}

// post fills the next completion slot. There is room: admission has seen to it.
func (r *ring) post(q *request, result int64) {
	r.inflight.remove(q)
	var cqe [wire.CqeBytes]byte
	c := wire.Cqe{Index: q.index, Result: result, Userdata: q.userdata}
	c.Encode(&cqe)
	at := r.cqeHead
	r.cqeHead = r.layout.Next(r.cqeHead)
	r.m.CopyIn(r.layout.CqeOff(at), cqe[:])
}

// publish makes posted completions visible: the marker after the slots, the
// semaphore after the marker.
func (r *ring) publish() {
	r.m.StoreInt32(wire.OffCqeHead, r.cqeHead)
	r.sem.Post()
}

// admitUnserved admits what no worker has come for, so that its deadline runs
// even while every worker is stuck. It tells whether there was any.
func (r *ring) admitUnserved() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.broken != nil {
		return false
	}
	if err := shm.Guard(r.admit); err != nil {
		r.breakLocked(err)
	}
	r.backlog.Store(len(r.queued) > 0)
	if len(r.queued) == 0 {
		return false
	}
	r.slow.Store(true) // whoever should have come for it is stuck
	return true
}

// expireBefore answers every request admitted before limit with ETIMEDOUT and
// makes sure that its buffer is left alone from then on.
func (r *ring) expireBefore(limit time.Time) (expired int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inflight.first == nil || !r.inflight.first.admitted.Before(limit) {
		return 0
	}
	err := shm.Guard(func() {
		for q := r.inflight.first; q != nil && q.admitted.Before(limit); q = r.inflight.first {
			if q.state.Swap(stateExpired) == stateRunning {
				if err := q.iov.abandon(q.win, q.off, q.len, r.write); err != nil {
					r.door.log.Error("cannot cut a stuck request off from its buffer", "err", err)
				}
			}
			r.post(q, -int64(syscall.ETIMEDOUT))
			expired++
		}
		r.publish()
	})
	if err != nil {
		r.breakLocked(err)
	}
	// What waits for a worker is answered now and must not be executed; what is
	// with a worker comes back through complete.
	kept := r.queued[:0]
	for _, q := range r.queued {
		if q.state.Load() == stateExpired {
			r.recycle(q)
		} else {
			kept = append(kept, q)
		}
	}
	r.queued = kept
	r.backlog.Store(len(kept) > 0)
	return expired
}

// breakLocked stops serving a ring whose client broke the rules. It is never
// repaired; the client may unlink it and make another.
func (r *ring) breakLocked(err error) {
	if r.broken == nil {
		r.broken = err
		r.door.log.Warn("ring detached: its client broke the protocol", "uid", r.cred.UID, "pid", r.cred.PID, "why", err)
		r.lane.remove(r)
	}
}

// close ends the registration's hold.
func (r *ring) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	for _, q := range r.queued {
		r.inflight.remove(q)
	}
	r.queued = nil
	r.backlog.Store(false)
	r.unhold()
}

func (r *ring) unhold() {
	if r.holds--; r.holds == 0 {
		r.m.Unmap()
	}
}

func (r *ring) newRequest() *request {
	if n := len(r.spare); n > 0 {
		q := r.spare[n-1]
		r.spare = r.spare[:n-1]
		return q
	}
	return &request{}
}

// recycle takes a request back once no worker can touch it any more.
func (r *ring) recycle(q *request) {
	q.state.Store(stateQueued)
	q.refused, q.result, q.iov, q.win = false, 0, nil, nil
	r.spare = append(r.spare, q)
}

// list is a doubly linked list of requests in order of admission.
type list struct {
	first, last *request
	n           int
}

func (l *list) push(q *request) {
	q.prev, q.next = l.last, nil
	if l.last == nil {
		l.first = q
	} else {
		l.last.next = q
	}
	l.last = q
	l.n++
}

func (l *list) remove(q *request) {
	if q.prev == nil {
		l.first = q.next
	} else {
		q.prev.next = q.next
	}
	if q.next == nil {
		l.last = q.prev
	} else {
		q.next.prev = q.prev
	}
	q.prev, q.next = nil, nil
	l.n--
}
