package ringserver

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// One worker takes at most a quantum from a ring and completes it with one post.
// A quantum is tens of microseconds of copying, because waking a client costs 5 to
// 10 µs on both sides. It is no larger, so that client and worker can run at the
// same time: 4 KiB reads at depth 64 on 2 processors reached 0.60 of the rate of plain
// I/O with 64 requests, 0.66 with 32, 0.73 with 16. A quantum has more bytes when many
// are waiting.
const (
	quantumRequests  = 16
	quantumBytes     = 512 << 10
	quantumMostBytes = 2 << 20
)

// ring is one client's I/O ring. Its markers are kept here; the memory shared with
// the client only shows them.
type ring struct {
	server       *Server
	poller       *poller
	cred         cred.Caller
	shm          *devShm // that its client has
	layout       wire.Layout
	write        bool
	depth        int32
	batchTimeout time.Duration // how long a partial batch of a negative depth waits; 0: not at all
	flags        uint64

	// backlog reports whether queued has requests.
	backlog atomic.Bool
	// oldest is when the oldest request in flight was admitted, on the server's clock; 0:
	// there is none.
	oldest atomic.Int64
	// missed is set by a worker that found the ring locked.
	missed   atomic.Bool
	expiring atomic.Bool // a goroutine expires its requests
	// slow reports whether requests of this ring recently waited for a device. Then
	// each of them gets a worker of its own.
	slow atomic.Bool
	// client and process are where its requests count.
	clientKey clientKey
	client    *clientTraffic // replaced under mu once it is gone
	process   *processTraffic

	// Guarded by poller.mu.
	user   *user
	listed bool // in user.backlog
	stuck  int  // workers that are stuck in its requests

	mu           sync.Mutex
	m            mapped   // unmapped when refs drops to 0
	journal      *journal // closed then, too; nil: the ring ends with its daemon
	pong         int32    // as it stands in the ring, see wire.Layout.PongOff
	sem          shm.Sem
	sqeTail      int32 // first submission slot not yet taken
	cqeHead      int32 // next completion slot to fill
	queued       []*request
	group        int32 // what is left to admit of groups of depth requests; only for a depth above mostInflight
	queuedBytes  int64 // sum of the next pieces of queued
	inflight     list  // admitted and not answered, oldest first
	counted      int   // inflight.n as it is counted in user.admitted
	refs         int   // one for the registration, one for each batch with a worker
	closed       bool  // unregistered: take no more
	broken       error
	partialSince time.Time // when the waiting partial batch was first seen; zero: there is none
	timer        *time.Timer
	spare        []*request
	slowOnes     []slowRequest
	tallies      []tally // of what is posted and not yet published
	postedAt     int64   // when the first of them was, on the server's clock
	seen         int32   // how many of the submitted requests were there at seenAt already
	seenAt       int64

	// freeSlots counts the completion slots that were free at the last admission and
	// have not been filled since; at least inflight.n. For invariants only.
	freeSlots int32
}

// mostSpare bounds the requests that an idle ring keeps for reuse, and room for them.
const mostSpare = 128

// mostInflight bounds the requests of one ring that are admitted at once, and so
// the memory that a ring of any size and depth costs the daemon.
const mostInflight = 4096

// newRing returns a ring over m, whose memory begin or adoptRing has prepared.
func newRing(s *Server, link wire.Link, c cred.Caller, layout wire.Layout, m mapped, sqeTail, cqeHead int32) *ring {
	r := &ring{
		sqeTail: sqeTail, cqeHead: cqeHead,
		server: s, poller: s.poller(link.Priority), cred: c, layout: layout, m: m, sem: m.Sem(layout.SemOff()), refs: 1,
		write: link.Write, depth: link.IODepth, flags: link.Flags,
	}
	if link.IODepth < 0 && link.TimeoutMs > 0 {
		r.batchTimeout = time.Duration(link.TimeoutMs) * time.Millisecond
		r.timer = time.AfterFunc(time.Hour, func() { r.poller.list(r) })
		r.timer.Stop()
	}
	return r
}

// unlock ends a change that began with mu.Lock or tryLock.
func (r *ring) unlock() {
	if len(r.tallies) > 0 { // the client's memory has gone before they were published
		r.count()
	}
	if invariants.Enabled {
		r.checkInvariants()
	}
	oldest := int64(0)
	if q := r.inflight.first; q != nil {
		oldest = q.admitted
	}
	r.oldest.Store(oldest)
	r.backlog.Store(len(r.queued) > 0)
	answered := r.counted - r.inflight.n
	r.counted = r.inflight.n
	user, slow := r.user, r.slowOnes
	r.slowOnes = nil
	if answered != 0 {
		user.admitted.Add(int64(-answered))
	}
	r.mu.Unlock()
	if r.missed.Load() && r.missed.Swap(false) {
		r.poller.list(r)
	}
	r.server.tellSlow(slow)
	if answered > 0 && user.held.Load() && user.held.Swap(false) {
		r.poller.mark(user)
	}
}

// take admits what the client has submitted and gives a quantum of it to the calling
// worker, which must pass it to complete. bytes is how much the worker will move, left is
// how much another one could move meanwhile. It takes nothing if somebody else has the ring locked; that
// one has the poller try again.
func (r *ring) take(batch []*request) (_ []*request, bytes, left int64) {
	if !r.tryLock() {
		return batch, 0, 0
	}
	defer r.unlock()
	if r.closed || r.broken != nil {
		return batch, 0, 0
	}
	r.admitGuarded()
	most, mostBytes := quantumRequests, min(max(r.queuedBytes/int64(r.poller.shares), quantumBytes), quantumMostBytes)
	if r.slow.Load() {
		most = 1
	}
	var avoid map[userFile]struct{}
	if full := r.poller.avoid.Load(); full != nil {
		avoid = *full
	}
	now := r.server.clock.now()
	kept, at := 0, 0
	for ; at < len(r.queued) && len(batch) < most && bytes < mostBytes; at++ {
		q := r.queued[at]
		if _, full := avoid[userFile{r.cred.UID, q.args.FileIno}]; full {
			r.queued[kept] = q
			kept++
			continue
		}
		q.state.Store(stateTaken)
		q.takenAt = now
		q.spent[spentQueued] += max(now-q.waitsAt, 0)
		bytes += q.piece
		batch = append(batch, q)
	}
	kept += copy(r.queued[kept:], r.queued[at:])
	clear(r.queued[kept:])
	r.queued = r.queued[:kept]
	if kept == 0 && cap(r.queued) > mostSpare {
		r.queued = nil
	}
	r.queuedBytes -= bytes
	r.noteTaken(batch, now)
	if len(batch) > 0 {
		r.refs++
	}
	return batch, bytes, r.shareable(batch)
}

// shareable returns how much is queued that another worker may move while batch is moved.
// The kernel writes a file one call at a time: a second worker would burn a processor
// that the client needs, waiting for the first.
func (r *ring) shareable(batch []*request) (bytes int64) {
	if r.write && len(batch) > 0 && len(r.queued) > 0 && r.queued[0].args.FileIno == batch[len(batch)-1].args.FileIno {
		return 0
	}
	return r.queuedBytes
}

func (r *ring) admitGuarded() {
	if err := shm.Guard(r.admit); err != nil {
		r.breakLocked(err)
	}
}

// admit copies requests out of the client's reach: as many as the io_depth rule
// (4.7) and the free completion slots allow.
func (r *ring) admit() {
	if r.leaving() {
		return
	}
	r.answerPing()
	head := r.m.LoadInt32(wire.OffSqeHead)
	cqeTail := r.m.LoadInt32(wire.OffCqeTail)
	if !r.layout.Valid(head) || !r.layout.Valid(cqeTail) {
		r.breakLocked(fmt.Errorf("markers out of range: sqe_head %d, cqe_tail %d, ring length %d", head, cqeTail, r.layout.RingLen))
		return
	}
	waiting := r.layout.Count(r.sqeTail, head)
	free := int32(r.layout.Entries()-r.inflight.n) - r.layout.Count(cqeTail, r.cqeHead)
	n := min(waiting, free)
	if most := int32(r.room()); n > most {
		n = most
		r.user.held.Store(true)
	}
	switch {
	case n <= 0:
		n = 0
	case r.depth > 0:
		n = r.admitWhole(n, waiting)
	case r.batchTimeout > 0:
		n = r.admitPartial(n)
	}
	r.seen = min(r.seen, waiting)
	if n == 0 {
		r.noteSeen(waiting)
		return
	}
	if invariants.Enabled {
		r.freeSlots = free + int32(r.inflight.n)
	}
	now := r.server.clock.now()
	var sqe [wire.SqeBytes]byte
	var args [wire.ArgsBytes]byte
	for i := range n {
		r.m.CopyOut(sqe[:], r.layout.SqeOff(r.sqeTail))
		var s wire.Sqe
		s.Decode(&sqe)
		q := r.newRequest()
		q.index, q.userdata, q.admitted, q.lay, q.waitsAt = s.Index, s.Userdata, now, r.laySince(now), now
		if r.layout.Valid(s.Index) {
			r.m.CopyOut(args[:], r.layout.ArgsOff(s.Index))
			q.args.Decode(&args)
		} else {
			q.badIndex = true
			q.args = wire.Args{}
		}
		r.journal.admit(q, int(i), &args)
		r.sqeTail = r.layout.Next(r.sqeTail)
		r.inflight.push(q)
		r.enqueue(q)
	}
	r.noteSeen(waiting - n)
	r.journal.take(int(n))
	r.m.StoreInt32(wire.OffSqeTail, r.sqeTail)
	if r.journal != nil {
		invariants.Reach("A3")
	}
}

// answerPing tells a client that its ring is served.
func (r *ring) answerPing() {
	if ping := r.m.LoadInt32(r.layout.PingOff()); ping != r.pong {
		r.pong = ping
		r.m.StoreInt32(r.layout.PongOff(), ping)
	}
}

// leaving reports whether the daemon is stopping and leaves what it has not begun to a successor.
func (r *ring) leaving() bool {
	return r.journal != nil && r.poller.drainUntil.Load() != 0 && r.server.successor.Load()
}

// noteSeen remembers since when requests have been waiting that were submitted and not admitted, unless it is known of some.
func (r *ring) noteSeen(waiting int32) {
	if r.seen == 0 && waiting > 0 {
		r.seen, r.seenAt = waiting, r.server.clock.now()
	}
}

// laySince returns since when the next request lies in the ring, as far as is known.
func (r *ring) laySince(now int64) int64 {
	if r.seen == 0 {
		return now
	}
	r.seen--
	return r.seenAt
}

// room returns how many more requests may be in flight.
func (r *ring) room() int64 {
	most := int64(mostInflight - r.inflight.n)
	if r.user != nil {
		most = min(most, mostAdmitted-r.user.admitted.Load()+int64(r.counted-r.inflight.n))
	}
	return max(most, 0)
}

// admitWhole applies the rule of a positive depth: requests are served in groups of
// depth. A group that is larger than what may be in flight is admitted in parts, once all
// of it is waiting.
func (r *ring) admitWhole(n, waiting int32) int32 {
	if r.depth <= mostInflight {
		return n - n%r.depth
	}
	if r.group == 0 {
		r.group = waiting - waiting%r.depth
		r.journal.noteGroup(r.group)
	}
	n = min(n, r.group)
	r.group -= n
	return n
}

// admitPartial applies the rule of a negative depth with a timeout: full batches
// at once, the rest when the timeout has passed.
func (r *ring) admitPartial(n int32) int32 {
	size := min(-r.depth, int32(r.layout.Entries()))
	rest := n % size
	if rest == 0 {
		r.partialSince = time.Time{}
		return n
	}
	now := time.Now()
	if r.partialSince.IsZero() || n > rest {
		r.partialSince = now
	}
	if wait := r.batchTimeout - now.Sub(r.partialSince); wait > 0 {
		r.timer.Reset(wait)
		return n - rest
	}
	r.partialSince = time.Time{}
	return n
}

func (r *ring) enqueue(q *request) {
	most := uint64(pieceBytes)
	if r.slow.Load() {
		most = slowPieceBytes
	}
	q.piece = int64(min(q.left(), most))
	r.queued = append(r.queued, q)
	r.queuedBytes += q.piece
}

// complete posts the completions of a batch that take returned, except for those
// that the deadline or a rescue has answered already, and queues requests of which more
// pieces follow. It reports whether it did.
func (r *ring) complete(batch []*request) (again bool) {
	r.mu.Lock()
	defer r.unlock()
	if r.broken == nil {
		err := shm.Guard(func() {
			posted := false
			if r.journal != nil {
				invariants.Reach("C0")
			}
			for _, q := range batch {
				switch s := q.state.Load(); {
				case q.needsDetach: // its system call has returned and no longer touches the buffer
					r.post(q, -int64(syscall.ETIMEDOUT))
					posted = true
				case s == stateAnswered || s == stateReplaced || q.unfinished:
				default:
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
		switch {
		case !q.unfinished || r.broken != nil || !q.state.CompareAndSwap(stateTaken, stateQueued):
			r.recycle(q)
		case r.closed:
			r.inflight.remove(q)
			q.dropView(&r.server.unmaps)
		default:
			q.unfinished = false
			q.waitsAt = r.server.clock.now()
			r.enqueue(q)
			again = true
		}
	}
	r.unref()
	return again
}

// post fills the next completion slot. Admission has made sure that it is free.
func (r *ring) post(q *request, result int64) {
	if invariants.Enabled {
		invariants.Check(!q.posted && r.inflight.has(q), "request %d: completed twice", q.index)
		invariants.Check(r.refs > 0, "request %d: completed in a ring that is unmapped", q.index)
		q.posted = true
		r.freeSlots--
		invariants.Check(r.freeSlots >= 0, "ring: more completions than slots")
	}
	r.inflight.remove(q)
	r.note(q, result)
	var cqe [wire.CqeBytes]byte
	c := wire.Cqe{Index: q.index, Result: result, Userdata: q.userdata}
	c.Encode(&cqe)
	at := r.cqeHead
	r.cqeHead = r.layout.Next(r.cqeHead)
	r.m.CopyIn(r.layout.CqeOff(at), cqe[:])
	r.journal.complete(q)
}

// publish makes posted completions visible: the marker after the slots, the
// semaphore after the marker.
func (r *ring) publish() {
	r.count()
	r.journal.publish()
	r.m.StoreInt32(wire.OffCqeHead, r.cqeHead)
	if r.journal != nil {
		invariants.Reach("C3")
	}
	if r.isAwaited() {
		r.sem.Post()
	}
	if r.journal != nil {
		invariants.Reach("C4")
	}
}

// isAwaited reports whether the completions that are there are worth waking the client's
// waiter for. A waiter of a kv3fs client stores how many it lacks and then looks at the marker
// once more, so one of the two sides sees the other. When nothing is in flight, no more will
// come, so whatever a client has stored there, it is woken in time.
func (r *ring) isAwaited() bool {
	awaited := r.m.LoadInt32(r.layout.AwaitedOff())
	if awaited <= 1 || r.inflight.n == 0 {
		return true
	}
	tail := r.m.LoadInt32(wire.OffCqeTail)
	return !r.layout.Valid(tail) || r.layout.Count(tail, r.cqeHead) >= awaited
}

// breakLocked stops serving a ring whose client broke the protocol. The ring is never
// repaired; the client may unlink it and make another.
func (r *ring) breakLocked(err error) {
	if r.broken == nil {
		r.broken = err
		r.journal.breaks()
		r.dropRequests()
		r.server.log.Warn("ring detached: its client broke the protocol", "uid", r.cred.UID, "pid", r.cred.PID, "err", err)
		r.poller.remove(r)
	}
}

// close drops the registration's reference. Requests that workers hold still finish:
// their batches keep the memory mapped, so their completions can be written.
func (r *ring) close() {
	r.mu.Lock()
	defer r.unlock()
	if invariants.Enabled {
		invariants.Check(!r.closed, "ring: closed twice")
		invariants.Check(!r.poller.has(r), "ring: closed while the poller can find it")
	}
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	for _, q := range r.queued {
		if r.broken == nil {
			r.inflight.remove(q)
		}
		q.dropView(&r.server.unmaps)
	}
	r.queued, r.queuedBytes = nil, 0
	r.unref()
}

// dropRequests drops every request without an answer, because the memory for answers
// cannot be used any more. Workers still pass their batches to complete.
func (r *ring) dropRequests() {
	r.inflight = list{}
	for _, q := range r.queued {
		q.dropView(&r.server.unmaps)
	}
	r.queued, r.queuedBytes = nil, 0
}

func (r *ring) unref() {
	if r.refs--; r.refs == 0 {
		r.m.Unmap()
		r.journal.close()
	}
}

func (r *ring) newRequest() *request {
	if n := len(r.spare); n > 0 {
		q := r.spare[n-1]
		r.spare = r.spare[:n-1]
		return q
	}
	return &request{expiredIn: stateDone}
}

// recycle keeps a request for reuse once no worker can touch it any more.
func (r *ring) recycle(q *request) {
	if invariants.Enabled {
		replaced := q.state.Load() == stateReplaced
		invariants.Check(r.broken != nil || q.posted != replaced, "request %d: recycled; completed: %v, replaced: %v", q.index, q.posted, replaced)
		q.posted = false
	}
	q.dropView(&r.server.unmaps)
	q.state.Store(stateQueued)
	q.moved.Store(0)
	q.spent, q.expiredIn = [spentParts]int64{}, stateDone
	q.badIndex, q.needsDetach, q.unfinished, q.begun, q.result = false, false, false, false, 0
	q.countedIn.Store(nil)
	if len(r.spare) < mostSpare {
		r.spare = append(r.spare, q)
	}
}
