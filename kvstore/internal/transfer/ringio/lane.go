package ringio

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/kv"
	"github.com/kv3fs/kv3fs/usrbio"
)

// lane is one direction of a connection: its moves, its rings and its staging iov.
//
// A move is in the row until all of its pieces are cut, which happens in the row's
// order whenever a ring has an entry and, for what is staged, the staging iov has
// room. What is settled is collected under the lock and told without it.
type lane struct {
	c          *conn
	write      bool
	rings      []*ring
	staging    *usrbio.Iov
	chunkBytes int

	mu       sync.Mutex
	row      []*move
	chunks   []int64 // offsets of what is free of the staging iov
	active   int     // moves accepted and not settled
	progress time.Time
	room     chan struct{} // closed when the row is not full any more; nil while nobody waits
	refuse   error         // of new moves, once the connection ends
	drained  chan struct{} // closed when refuse is set and active is 0
}

// take accepts moves in their order, waiting while the row is full.
func (l *lane) take(ctx context.Context, ops []transfer.Op) {
	for len(ops) > 0 {
		n, room, err := l.accept(ctx, ops)
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

// accept puts as many moves as there is room for into the row, and begins what can
// be. room is for waiting for more.
func (l *lane) accept(ctx context.Context, ops []transfer.Op) (n int, room chan struct{}, err error) {
	l.mu.Lock()
	if l.refuse != nil {
		defer l.mu.Unlock()
		return 0, nil, l.refuse
	}
	if err := ctx.Err(); err != nil {
		defer l.mu.Unlock()
		return 0, nil, err
	}
	now := time.Now()
	n = min(len(ops), l.c.o.WaitingQueueDepth-len(l.row))
	for _, op := range ops[:n] {
		f := op.File.(*file)
		m := &move{op: op, ctx: ctx, file: f, queued: true, since: now, end: len(op.Buf)}
		m.iov, m.iovAt = l.c.inPlace(op.Buf)
		l.row = append(l.row, m)
	}
	l.active += n
	due := l.pump(nil, now)
	if n < len(ops) && len(l.row) >= l.c.o.WaitingQueueDepth {
		if l.room == nil {
			l.room = make(chan struct{})
		}
		room = l.room
	}
	l.mu.Unlock()
	settleAll(due)
	return n, room, nil
}

// pump cuts pieces off the row for as long as there is room for them.
func (l *lane) pump(due []*move, now time.Time) []*move {
	for len(l.row) > 0 {
		m := l.row[0]
		if m.err == nil && m.next == 0 && m.ctx.Err() != nil {
			m.fail(m.ctx.Err())
		}
		if m.over() {
			l.row[0] = nil
			l.row = l.row[1:]
			due = l.leave(due, m)
			continue
		}
		if !l.cut(m, now) {
			break
		}
	}
	for _, r := range l.rings {
		if len(r.ready) == 0 {
			continue
		}
		var err error
		if due, err = r.flush(due); err != nil {
			l.c.lost(err)
		}
	}
	if l.room != nil && len(l.row) < l.c.o.WaitingQueueDepth {
		close(l.room)
		l.room = nil
	}
	return due
}

// cut takes the next piece of m to the ring with the most room, if there is any.
func (l *lane) cut(m *move, now time.Time) bool {
	r := l.rings[0]
	for _, other := range l.rings[1:] {
		if len(other.spare) > len(r.spare) {
			r = other
		}
	}
	if len(r.spare) == 0 {
		return false
	}
	n, chunk := m.end-m.next, int64(-1)
	if m.iov == nil {
		last := len(l.chunks) - 1
		if last < 0 {
			return false
		}
		chunk, l.chunks = l.chunks[last], l.chunks[:last]
		n = min(n, l.chunkBytes)
	}
	i := r.take(m, n, chunk, now)
	if l.write && m.iov == nil {
		r.entries[i].state = copying
		l.c.copies <- copyJob{r, i} // never full: it holds every entry
	} else {
		r.ready = append(r.ready, i)
	}
	return true
}

// end is the end of an entry's piece.
func (l *lane) end(due []*move, r *ring, i int) []*move {
	m := r.entries[i].m
	r.release(i)
	return l.part(due, m)
}

// part takes a piece off a move.
func (l *lane) part(due []*move, m *move) []*move {
	m.pending--
	return l.settled(due, m)
}

// leave is the end of a move's stay in the row.
func (l *lane) leave(due []*move, m *move) []*move {
	m.queued = false
	return l.settled(due, m)
}

func (l *lane) settled(due []*move, m *move) []*move {
	if m.queued || m.pending > 0 {
		return due
	}
	if l.active--; l.active == 0 && l.drained != nil {
		close(l.drained)
		l.drained = nil
	}
	return append(due, m)
}

// complete is what the waiter of a ring does with completions.
func (l *lane) complete(r *ring, done []usrbio.Completion) {
	now := time.Now()
	var due []*move
	l.mu.Lock()
	l.progress = now
	for _, c := range done {
		i := int(c.Userdata)
		e := &r.entries[i]
		switch {
		case e.state == retired:
			r.release(i)
		case c.Err() != nil:
			e.m.fail(e.m.fileError(c.Err()))
			due = l.end(due, r, i)
		case e.chunk >= 0 && !l.write && c.Result > 0:
			e.state, e.got = copying, int(c.Result)
			l.c.copies <- copyJob{r, i}
		default:
			e.m.arrived(e.from, e.n, int(c.Result))
			due = l.end(due, r, i)
		}
	}
	due = l.pump(due, now)
	l.mu.Unlock()
	settleAll(due)
}

// copied is what a copier does with an entry that it has copied.
func (l *lane) copied(r *ring, i int) {
	now := time.Now()
	var due []*move
	l.mu.Lock()
	e := &r.entries[i]
	switch {
	case !l.write:
		e.m.arrived(e.from, e.n, e.got)
		due = l.end(due, r, i)
	case l.refuse != nil && l.c.dead():
		e.m.fail(e.m.fileError(l.refuse))
		due = l.end(due, r, i)
	default:
		e.state, e.since = ready, now
		r.ready = append(r.ready, i)
	}
	due = l.pump(due, now)
	l.mu.Unlock()
	settleAll(due)
}

// look settles what has waited too long, or is not wanted any more.
func (l *lane) look(now time.Time) {
	var due []*move
	l.mu.Lock()
	timeout := l.c.o.Timeout
	for _, r := range l.rings {
		for i := range r.entries {
			e := &r.entries[i]
			if (e.state == begun || e.state == ready) && now.Sub(e.since) >= timeout {
				due = l.giveUp(due, r, i, e.m.fileError(kv.ErrTimeout))
			}
		}
	}
	// The row moves as long as anything does. While nothing has for so long, what
	// stands in it has had its time, too.
	stalled := now.Sub(l.progress) >= timeout
	for _, m := range l.row {
		switch {
		case m.err != nil:
		case m.next == 0 && m.ctx.Err() != nil:
			m.fail(m.ctx.Err())
		case stalled && m.pending == 0 && now.Sub(m.since) >= timeout:
			m.fail(m.fileError(kv.ErrTimeout))
		}
	}
	l.row = slices.DeleteFunc(l.row, func(m *move) bool {
		if m.err == nil {
			return false
		}
		due = l.leave(due, m)
		return true
	})
	due = l.pump(due, now)
	l.mu.Unlock()
	settleAll(due)
}

// giveUp settles an entry's piece without the daemon. What it has, it keeps.
func (l *lane) giveUp(due []*move, r *ring, i int, why error) []*move {
	e := &r.entries[i]
	if e.state == ready {
		r.ready = slices.DeleteFunc(r.ready, func(x int) bool { return x == i })
		e.m.fail(why)
		return l.end(due, r, i)
	}
	m := e.m
	if e.chunk < 0 {
		why = m.abandoned()
	}
	m.fail(why)
	e.state, e.m = retired, nil
	return l.part(due, m)
}

// close refuses new moves and cuts no more pieces. The channel is closed when those
// that were are settled, at the latest after the engine's time.
func (l *lane) close() <-chan struct{} {
	drained := make(chan struct{})
	l.mu.Lock()
	if l.refuse == nil {
		l.refuse = kv.ErrClosed
	}
	due := l.empty(nil, kv.ErrClosed)
	if l.active == 0 {
		close(drained)
	} else {
		l.drained = drained
	}
	l.mu.Unlock()
	settleAll(due)
	return drained
}

// empty takes everything from the row.
func (l *lane) empty(due []*move, why error) []*move {
	for _, m := range l.row {
		m.fail(m.fileError(why))
		due = l.leave(due, m)
	}
	l.row = nil
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
	return due
}

// cutOff ends everything but what is being copied. harmless: the daemon cannot touch
// anybody's memory any more. Else it is told how many requests may still do so in place.
func (l *lane) cutOff(why error, harmless bool) (inUse int) {
	l.mu.Lock()
	l.refuse = why
	due := l.empty(nil, why)
	for _, r := range l.rings {
		for i := range r.entries {
			switch e := &r.entries[i]; {
			case e.state == ready, e.state == begun && harmless:
				e.m.fail(e.m.fileError(why))
				due = l.end(due, r, i)
			case e.state == begun:
				due = l.giveUp(due, r, i, e.m.fileError(why))
			}
			if e := &r.entries[i]; e.state == retired && e.chunk < 0 && !harmless {
				inUse++
			}
		}
		r.ready = nil
	}
	l.mu.Unlock()
	settleAll(due)
	return inUse
}

// ringDead tells an error of a ring from one of a request.
func ringDead(err error) bool {
	return errors.Is(err, usrbio.ErrDaemonGone) || errors.Is(err, usrbio.ErrProtocol) || errors.Is(err, os.ErrClosed)
}
