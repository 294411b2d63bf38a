package ringio

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/usrbio"
)

// direction is one direction of a connection, reading or writing: its moves, its rings
// and its staging iov.
//
// A move stays in the queue until all of its pieces are cut. Pieces are cut in the order
// of the queue, whenever a ring has an entry and, for a staged move, the staging iov has
// room. Methods collect the moves that have ended under the lock; they are settled after
// it is released.
type direction struct {
	c          *conn
	write      bool
	rings      []*ring
	staging    *usrbio.Iov
	chunkBytes int
	copies     chan copyJob

	mu       sync.Mutex
	queue    []*move
	bytes    int     // of the pieces under way, without those that were given up
	begun    uint64  // requests, ever
	chunks   []int64 // offsets of the free pieces of the staging iov
	active   int     // moves accepted and not settled
	progress time.Time
	room     chan struct{} // closed when the queue is no longer full; nil while nobody waits
	refuse   error         // of new moves, once the connection ends
	drained  chan struct{} // closed when refuse is set and active is 0
}

// writeBytes bounds the bytes of writes that are under way at once: a read waits for those in
// the device. One piece may have more.
const writeBytes = 4 << 20

// take accepts moves in their order. It waits while the queue is full.
func (d *direction) take(ctx context.Context, ops []transfer.Op) {
	for len(ops) > 0 {
		n, room, err := d.accept(ctx, ops)
		ops = ops[n:]
		if err == nil && room != nil {
			select {
			case <-room:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		if err != nil {
			for i := range ops {
				ops[i].Done(0, err)
			}
			return
		}
	}
}

// accept puts as many moves into the queue as there is room for, and begins what it can.
// If the queue is full, room is closed when it no longer is.
func (d *direction) accept(ctx context.Context, ops []transfer.Op) (n int, room chan struct{}, err error) {
	d.mu.Lock()
	if d.refuse != nil {
		defer d.mu.Unlock()
		return 0, nil, d.refuse
	}
	if err := ctx.Err(); err != nil {
		defer d.mu.Unlock()
		return 0, nil, err
	}
	now := time.Now()
	n = min(len(ops), d.c.o.WaitingQueueDepth-len(d.queue))
	for _, op := range ops[:n] {
		f := op.File.(*file)
		m := &move{op: op, ctx: ctx, file: f, queued: true, since: now, end: len(op.Buf)}
		m.iov, m.iovAt = d.c.inPlace(op.Buf)
		d.push(m)
	}
	d.active += n
	due := d.pump(nil, now)
	if n < len(ops) && len(d.queue) >= d.c.o.WaitingQueueDepth {
		if d.room == nil {
			d.room = make(chan struct{})
		}
		room = d.room
	}
	d.mu.Unlock()
	settleAll(due)
	return n, room, nil
}

// push appends a move to the queue. One that is to be ahead comes before those that wait and
// are not.
func (d *direction) push(m *move) {
	at := len(d.queue)
	if m.op.Ahead {
		at = 0
		for at < len(d.queue) && (d.queue[at].op.Ahead || d.queue[at].next > 0) {
			at++
		}
	}
	d.queue = slices.Insert(d.queue, at, m)
}

// pump cuts pieces off the queued moves for as long as there is room for them. mu is held
// by the caller, as it is of all methods that take due and return it.
func (d *direction) pump(due []*move, now time.Time) []*move {
	for len(d.queue) > 0 {
		m := d.queue[0]
		if m.err == nil && m.next == 0 && m.ctx.Err() != nil {
			m.fail(m.ctx.Err())
		}
		if m.over() {
			d.queue[0] = nil
			d.queue = d.queue[1:]
			due = d.leave(due, m)
			continue
		}
		if !d.cut(m, now) {
			break
		}
	}
	for _, r := range d.rings {
		if len(r.ready) == 0 {
			continue
		}
		var err error
		if due, err = r.flush(due); err != nil {
			d.c.lost(err)
		}
	}
	if d.room != nil && len(d.queue) < d.c.o.WaitingQueueDepth {
		close(d.room)
		d.room = nil
	}
	return due
}

// cut gives the next piece of m to the ring with the most room, and reports whether there
// was any.
func (d *direction) cut(m *move, now time.Time) bool {
	r := d.rings[0]
	for _, other := range d.rings[1:] {
		if len(other.spare) > len(r.spare) {
			r = other
		}
	}
	if len(r.spare) == 0 {
		return false
	}
	n, chunk := m.end-m.next, int64(-1)
	if m.iov == nil {
		last := len(d.chunks) - 1
		if last < 0 {
			return false
		}
		chunk, d.chunks = d.chunks[last], d.chunks[:last]
		n = min(n, d.chunkBytes)
	}
	if d.write && d.bytes > 0 && d.bytes+n > writeBytes {
		if chunk >= 0 {
			d.chunks = append(d.chunks, chunk)
		}
		return false
	}
	i := r.take(m, n, chunk, now)
	if d.write && m.iov == nil {
		r.entries[i].state = copying
		d.copies <- copyJob{r, i} // never full: it holds every entry
	} else {
		r.ready = append(r.ready, i)
	}
	return true
}

// end releases an entry and ends its piece.
func (d *direction) end(due []*move, r *ring, i int) []*move {
	m := r.entries[i].m
	r.release(i)
	return d.part(due, m)
}

// part counts a piece of a move that has ended.
func (d *direction) part(due []*move, m *move) []*move {
	m.pending--
	invariants.Check(m.pending >= 0, "a move has %d pieces under way", m.pending)
	return d.settled(due, m)
}

// leave notes that a move has left the queue.
func (d *direction) leave(due []*move, m *move) []*move {
	m.queued = false
	return d.settled(due, m)
}

// settled adds a move to due if it has left the queue and all of its pieces have ended.
func (d *direction) settled(due []*move, m *move) []*move {
	if m.queued || m.pending > 0 {
		return due
	}
	d.active--
	invariants.Check(d.active >= 0, "%d moves are under way", d.active)
	if d.active == 0 && d.drained != nil {
		close(d.drained)
		d.drained = nil
	}
	return append(due, m)
}

// complete ends the pieces of completed requests. The waiter of the ring calls it.
func (d *direction) complete(r *ring, done []usrbio.Completion) {
	now := time.Now()
	var due []*move
	var late []func()
	d.mu.Lock()
	d.progress = now
	d.extend(r, done, now)
	for _, c := range done {
		i := int(c.Userdata)
		e := &r.entries[i]
		switch {
		case e.state == retired:
			if e.late != nil {
				late = append(late, e.late)
			}
			r.release(i)
		case c.Err() != nil:
			e.m.fail(e.m.fileError(c.Err()))
			due = d.end(due, r, i)
		case e.chunk >= 0 && !d.write && c.Result > 0:
			e.state, e.got = copying, int(c.Result)
			d.copies <- copyJob{r, i}
		default:
			e.m.arrived(e.from, e.n, int(c.Result))
			due = d.end(due, r, i)
		}
	}
	due = d.pump(due, now)
	d.mu.Unlock()
	settleAll(due)
	for _, tell := range late {
		tell()
	}
}

// extend notes that requests progress, which began after one of those that are done: a busy
// device serves them in about that order.
func (d *direction) extend(r *ring, done []usrbio.Completion, now time.Time) {
	first := d.begun
	for _, c := range done {
		first = min(first, r.entries[c.Userdata].number)
	}
	for _, r := range d.rings {
		for i := range r.entries {
			if e := &r.entries[i]; e.state == begun && e.number > first {
				e.since = now
			}
		}
	}
}

// copied continues with an entry that a copier has copied.
func (d *direction) copied(r *ring, i int) {
	now := time.Now()
	var due []*move
	d.mu.Lock()
	e := &r.entries[i]
	switch {
	case !d.write:
		e.m.arrived(e.from, e.n, e.got)
		due = d.end(due, r, i)
	case d.refuse != nil && d.c.dead():
		e.m.fail(e.m.fileError(d.refuse))
		due = d.end(due, r, i)
	default:
		e.state, e.since = ready, now
		r.ready = append(r.ready, i)
	}
	due = d.pump(due, now)
	d.mu.Unlock()
	settleAll(due)
}

// look settles moves that have waited too long or were cancelled.
func (d *direction) look(now time.Time) {
	var due []*move
	d.mu.Lock()
	timeout := d.c.o.Timeout
	for _, r := range d.rings {
		for i := range r.entries {
			e := &r.entries[i]
			if (e.state == begun || e.state == ready) && now.Sub(e.since) >= timeout {
				due = d.giveUp(due, r, i, e.m.fileError(kv.ErrTimeout))
			}
		}
	}
	// The queue moves while any request completes. When none has for the timeout, a move
	// that has waited that long is overdue, too.
	stalled := now.Sub(d.progress) >= timeout
	for _, m := range d.queue {
		switch {
		case m.err != nil:
		case m.next == 0 && m.ctx.Err() != nil:
			m.fail(m.ctx.Err())
		case stalled && m.pending == 0 && now.Sub(m.since) >= timeout:
			m.fail(m.fileError(kv.ErrTimeout))
		}
	}
	d.queue = slices.DeleteFunc(d.queue, func(m *move) bool {
		if m.err == nil {
			return false
		}
		due = d.leave(due, m)
		return true
	})
	due = d.pump(due, now)
	d.mu.Unlock()
	settleAll(due)
}

// giveUp ends an entry's piece without the daemon's answer. An entry that the daemon has
// is retired.
func (d *direction) giveUp(due []*move, r *ring, i int, why error) []*move {
	e := &r.entries[i]
	if e.state == ready {
		r.ready = slices.DeleteFunc(r.ready, func(x int) bool { return x == i })
		e.m.fail(why)
		return d.end(due, r, i)
	}
	m := e.m
	if e.chunk < 0 {
		why = m.abandoned()
		e.late = m.op.Late
	}
	m.fail(why)
	d.bytes -= e.n
	e.state, e.m, e.n = retired, nil, 0
	return d.part(due, m)
}

// close refuses new moves and cuts no more pieces. The channel is closed when the moves
// that have begun are settled, at the latest after the engine's timeout.
func (d *direction) close() <-chan struct{} {
	drained := make(chan struct{})
	d.mu.Lock()
	if d.refuse == nil {
		d.refuse = kv.ErrClosed
	}
	due := d.empty(nil, kv.ErrClosed)
	if d.active == 0 {
		close(drained)
	} else {
		d.drained = drained
	}
	d.mu.Unlock()
	settleAll(due)
	return drained
}

// empty fails all queued moves.
func (d *direction) empty(due []*move, why error) []*move {
	for _, m := range d.queue {
		m.fail(m.fileError(why))
		due = d.leave(due, m)
	}
	d.queue = nil
	if d.room != nil {
		close(d.room)
		d.room = nil
	}
	return due
}

// cutOff ends everything but what is being copied. harmless says that the daemon can no
// longer access any memory; if it can, inUse is how many requests may still do so in
// place.
func (d *direction) cutOff(why error, harmless bool) (inUse int) {
	d.mu.Lock()
	d.refuse = why
	due := d.empty(nil, why)
	for _, r := range d.rings {
		for i := range r.entries {
			switch e := &r.entries[i]; {
			case e.state == ready, e.state == begun && harmless:
				e.m.fail(e.m.fileError(why))
				due = d.end(due, r, i)
			case e.state == begun:
				due = d.giveUp(due, r, i, e.m.fileError(why))
			}
			if e := &r.entries[i]; e.state == retired && e.chunk < 0 && !harmless {
				inUse++
			}
		}
		r.ready = nil
	}
	d.mu.Unlock()
	settleAll(due)
	return inUse
}

// ringDead reports whether an error is about the ring, not about one request.
func ringDead(err error) bool {
	return errors.Is(err, usrbio.ErrDaemonGone) || errors.Is(err, usrbio.ErrProtocol) || errors.Is(err, os.ErrClosed)
}
