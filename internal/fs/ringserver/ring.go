package ringserver

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// What one worker takes from a ring at once and completes with one post: tens of
// microseconds of copying, since waking a client costs 5 to 10 µs on both sides,
// and no more, so that client and worker have something to do at the same time
// (4 KiB reads at depth 64, 2 processors, of plain I/O: 0.60 with 64 requests, 0.66
// with 32, 0.73 with 16). More bytes when much is waiting anyway.
const (
	quantumRequests  = 16
	quantumBytes     = 512 << 10
	quantumMostBytes = 2 << 20
)

// ring is one client's I/O ring. Its markers are kept here, the memory shared
// with the client only shows them.
type ring struct {
	server       *Server
	poller       *poller
	cred         cred.Caller
	layout       wire.Layout
	write        bool
	depth        int32
	batchTimeout time.Duration // how long a negative depth waits for more; 0: not at all
	flags        uint64

	// seen is sqeTail, for peeking without the lock.
	seen atomic.Int32
	// backlog says that queued is not empty, for the same purpose.
	backlog atomic.Bool
	// slow says that requests of this ring lately waited for a device: each then
	// wants a worker of its own.
	slow atomic.Bool

	mu       sync.Mutex
	m        *shm.Mapping // unmapped once closed and idle
	sem      shm.Sem
	sqeTail  int32 // first submission slot not yet taken
	cqeHead  int32 // next completion slot to fill
	queued   []*request
	waiting  uint64 // bytes that queued asks for; foreign numbers, may wrap around
	inflight list   // admitted and not answered, oldest first
	refs     int    // why m must stay mapped: the registration, and requests with workers
	closed   bool   // unregistered: take no more
	broken   error
	partial  time.Time // since when fewer than a batch wait; zero: none do
	timer    *time.Timer
	spare    []*request
}

// mostInflight bounds what is admitted of one ring at once, and so the memory
// that a ring of any size costs the daemon. A larger io_depth is still honoured.
const mostInflight = 4096

// request is one admitted operation: our own copy of what the client asked.
type request struct {
	index    int32
	userdata uint64
	args     wire.Args
	badIndex bool // the index is none of the ring's: answer EINVAL
	admitted time.Time
	takenAt  time.Time

	state  atomic.Int32
	result int64 // the worker's until the state is done

	// Where the worker moves bytes, set before the state is running.
	iov         *iov
	win         *view
	off         int64
	len         int64
	moved       atomic.Int64 // bytes before the piece that is being moved
	needsDetach bool         // expired, but not yet cut off from its buffer; guarded by ring.mu

	prev, next *request
}

// The states of a request. A worker moves it from taken to running to done; the
// deadline to answered from any; a rescue from taken to moved, when the worker is
// stuck in a neighbour.
const (
	stateQueued   = iota // in ring.queued
	stateTaken           // with a worker, not begun
	stateRunning         // with a worker, in a system call
	stateDone            // with a worker, result is valid
	stateAnswered        // its completion is posted; the worker may still hold it
	stateReplaced        // another request stands for it
)

// done publishes result.
func (q *request) done() {
	if !q.state.CompareAndSwap(stateRunning, stateDone) {
		q.state.CompareAndSwap(stateTaken, stateDone) // it never came to a system call
	}
}

func newRing(s *Server, link wire.Link, c cred.Caller, layout wire.Layout, m *shm.Mapping) (*ring, error) {
	r := &ring{
		server: s, poller: s.poller(link.Priority), cred: c, layout: layout, m: m, sem: m.Sem(layout.SemOff()), refs: 1,
		write: link.Write, depth: link.IODepth, flags: link.Flags,
	}
	if link.IODepth < 0 && link.TimeoutMs > 0 {
		r.batchTimeout = time.Duration(link.TimeoutMs) * time.Millisecond
		r.timer = time.AfterFunc(time.Hour, r.poller.wake)
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
// shm.Guard and only where the ring cannot be unmapped meanwhile (poller.peek).
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
	most, mostBytes := quantumRequests, min(max(r.waiting/r.poller.shares, quantumBytes), quantumMostBytes)
	if r.slow.Load() {
		most = 1
	}
	n := 0
	now := time.Now()
	for bytes := uint64(0); n < len(r.queued) && n < most && bytes < mostBytes; n++ {
		q := r.queued[n]
		q.state.Store(stateTaken)
		q.takenAt = now
		bytes += q.args.Len
		batch = append(batch, q)
		r.waiting -= q.args.Len
	}
	r.queued = r.queued[:copy(r.queued, r.queued[n:])]
	r.backlog.Store(len(r.queued) > 0)
	if len(batch) > 0 {
		r.refs++
	}
	return batch, r.waiting
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
	n := min(waiting, room, max(mostInflight-int32(r.inflight.n), r.depth))
	switch {
	case n <= 0:
		n = 0
	case r.depth > 0:
		n -= n % r.depth
	case r.batchTimeout > 0:
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
			q.badIndex = true
		}
		r.sqeTail = r.layout.Next(r.sqeTail)
		r.inflight.push(q)
		r.enqueue(q)
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
	if wait := r.batchTimeout - now.Sub(r.partial); wait > 0 {
		r.timer.Reset(wait)
		return n - rest
	}
	r.partial = time.Time{}
	return n
}

func (r *ring) enqueue(q *request) {
	r.queued = append(r.queued, q)
	r.waiting += q.args.Len
}

// complete posts the completions of a batch that take handed out, but for those
// that somebody else has answered already.
func (r *ring) complete(batch []*request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken == nil {
		err := shm.Guard(func() {
			posted := false
			for _, q := range batch {
				switch s := q.state.Load(); {
				case q.needsDetach: // its system call is over, and with it the danger
					r.post(q, -int64(syscall.ETIMEDOUT))
					posted = true
				case s != stateAnswered && s != stateReplaced:
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
	}
	for _, q := range batch {
		r.recycle(q)
	}
	r.unref()
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

// tick does for a ring what its workers cannot while they are stuck: it
// admits what nobody has come for, so that its deadline runs; takes back what
// stuck workers have not begun and answers what they have finished; and answers
// everything admitted before limit with ETIMEDOUT, whose buffers are left alone
// from then on. It tells how many those were and whether work waits for workers.
func (r *ring) tick(now, limit time.Time) (expired int, work bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
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
		r.slow.Store(true) // whoever should have come for it is stuck
	}
	r.backlog.Store(len(r.queued) > 0)
	return expired, len(r.queued) > 0
}

// rescueAfter is when a batch that is still not complete is held to be stuck in
// one of its requests.
const rescueAfter = 50 * time.Millisecond

// rescue parts requests of batches taken before limit from the one their worker
// is stuck in.
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

// expire answers what was admitted before limit.
func (r *ring) expire(limit time.Time) (expired int) {
	posted := false
	for q := r.inflight.first; q != nil && q.admitted.Before(limit); q = r.inflight.first {
		before := q.state.Swap(stateAnswered)
		if before == stateDone {
			r.post(q, q.result)
			posted = true
			continue
		}
		if before == stateRunning || q.needsDetach {
			moved := q.moved.Load()
			if err := q.iov.abandon(q.win, q.off+moved, min(q.len-moved, pieceBytes), r.write); err != nil {
				// Not answered while its buffer is in danger; tried again soon.
				r.server.log.Error("cannot cut a stuck request off from its buffer", "err", err)
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
	// What waited for a worker is answered now and must not be executed; what is
	// with a worker comes back through complete.
	kept := r.queued[:0]
	for _, q := range r.queued {
		if q.state.Load() == stateAnswered {
			r.waiting -= q.args.Len
			r.recycle(q)
		} else {
			kept = append(kept, q)
		}
	}
	r.queued = kept
	return expired
}

// breakLocked stops serving a ring whose client broke the rules. It is never
// repaired; the client may unlink it and make another.
func (r *ring) breakLocked(err error) {
	if r.broken == nil {
		r.broken = err
		r.abandonAll()
		r.server.log.Warn("ring detached: its client broke the protocol", "uid", r.cred.UID, "pid", r.cred.PID, "why", err)
		r.poller.remove(r)
	}
}

// close ends the registration's hold. Requests with workers finish; their
// completions are written while they hold the memory.
func (r *ring) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	for _, q := range r.queued {
		if r.broken == nil {
			r.inflight.remove(q)
		}
	}
	r.queued, r.waiting = nil, 0
	r.backlog.Store(false)
	r.unref()
}

// abandonAll forgets every request without an answer: the memory for answers is
// not there any more. What workers hold comes back through complete.
func (r *ring) abandonAll() {
	r.inflight = list{}
	r.queued, r.waiting = nil, 0
	r.backlog.Store(false)
}

func (r *ring) unref() {
	if r.refs--; r.refs == 0 {
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
	q.badIndex, q.needsDetach, q.result, q.iov, q.win = false, false, 0, nil, nil
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

// replace puts b in the place of a.
func (l *list) replace(a, b *request) {
	b.prev, b.next = a.prev, a.next
	if a.prev == nil {
		l.first = b
	} else {
		a.prev.next = b
	}
	if a.next == nil {
		l.last = b
	} else {
		a.next.prev = b
	}
	a.prev, a.next = nil, nil
}
