package ringserver

import (
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// request is one admitted operation, with our own copy of what the client wrote.
type request struct {
	index    int32
	userdata uint64
	args     wire.Args
	badIndex bool  // index lies outside the ring: answer EINVAL
	slot     int32 // of the ring's journal
	admitted int64 // on the server's clock, as takenAt
	lay      int64 // since when it lay in the ring, as far as the daemon knows
	takenAt  int64

	state  atomic.Int32
	result int64 // written by the worker; valid once the state is done

	// Where the worker moves bytes; set before the state becomes running. The request
	// holds a reference to the view until it is recycled, because its deadline may need
	// the view after the worker has gone on to another one.
	iov   *iov
	view  *view
	off   int64
	len   int64
	moved atomic.Int64 // bytes moved before the current piece
	piece int64        // how much is moved in the next turn, or a bit more; set when it is queued

	// countedIn is where its completion counts; nil until its file is known. The worker sets
	// it, and whoever posts the completion reads it.
	countedIn atomic.Pointer[directoryTraffic]

	spent [spentParts]int64 // written by the worker that has it, and by who takes and queues it
	// awaitsRoom says that its worker waits until something else was removed.
	awaitsRoom atomic.Bool
	waitsAt    int64 // since when it waits for a turn; guarded by ring.mu
	expiredIn  int32 // the state in which its deadline met it; stateDone if none has; guarded by ring.mu

	begun       bool // it was taken before; guarded by ring.mu
	unfinished  bool // more pieces follow; for the worker that has it
	needsDetach bool // expired, but the kernel can still reach its buffer; guarded by ring.mu
	posted      bool // its completion is in the ring; kept for invariants only, guarded by ring.mu

	prev, next *request
}

// The states of a request. Its worker moves it from taken to begun, running and done, or
// back to taken if more pieces follow. The deadline moves it from any state to answered. A
// rescue moves it from taken to replaced when the worker is stuck in another request of
// the batch.
const (
	stateQueued   = iota // in ring.queued
	stateTaken           // with a worker, not begun
	stateBegun           // with a worker, which checks it and opens its file
	stateRunning         // with a worker, in a system call on its buffer
	stateDone            // with a worker, result is valid
	stateAnswered        // its completion is posted; the worker may still hold it
	stateReplaced        // a copy of it was queued and will be answered instead
)

// done publishes result.
func (q *request) done() {
	if invariants.Enabled {
		s := q.state.Load()
		invariants.Check(s > stateTaken && s != stateDone, "request %d: a worker ended it in state %d", q.index, s)
	}
	if !q.state.CompareAndSwap(stateRunning, stateDone) {
		q.state.CompareAndSwap(stateBegun, stateDone) // it needed no system call
	}
}

// left returns how many bytes are still to be moved, by the client's unchecked length.
func (q *request) left() uint64 { return q.args.Len - uint64(q.moved.Load()) }

// turn returns how much its next piece moves, once its length is known. A piece that is not the last ends where a range
// of checksums does, so that the next one begins with a whole one.
func (q *request) turn() int64 {
	moved := q.moved.Load()
	rest := q.len - moved
	if rest <= q.piece {
		return rest
	}
	if over := (int64(q.args.FileOff) + moved + q.piece) % integrity.RangeBytes; over < q.piece {
		return q.piece - over
	}
	return q.piece
}

// dropView gives back the reference to the request's memory.
func (q *request) dropView(u *unmapper) {
	if q.view != nil {
		q.view.releaseBy(u)
	}
	q.iov, q.view = nil, nil
}

// list is a doubly linked list of requests in order of admission.
type list struct {
	first, last *request
	n           int
}

// has reports whether q is linked in l. It does not search l: a request that is linked
// in no list has neither prev nor next.
func (l *list) has(q *request) bool { return q.prev != nil || l.first == q }

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
