package ringio

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/usrbio"
)

// state of an entry.
type state uint8

const (
	free    state = iota
	copying       // a copier has it
	ready         // waits for Prepare
	begun         // the daemon has it
	retired       // the daemon still has it, and no move waits for it
)

// entry is a piece of a move on a ring.
type entry struct {
	state state
	m     *move
	from  int // of the move's buffer
	n     int
	got   int   // how many of n were read and are not copied yet
	chunk int64 // where in the staging iov; -1: in place

	number uint64    // in the order in which requests began
	since  time.Time // when it began, or when a request that began before it was last done
	late   func()    // of a retired one: called when it is done after all
}

// ring is one ring and its entries. The lock of its direction guards them.
type ring struct {
	d       *direction
	ring    *usrbio.Ring
	entries []entry
	spare   []int // free entries
	ready   []int // to be prepared, in this order
	work    chan struct{}
}

func newRing(d *direction, r *usrbio.Ring) *ring {
	out := &ring{d: d, ring: r, entries: make([]entry, r.Entries()), work: make(chan struct{}, 1)}
	for i := range out.entries {
		out.spare = append(out.spare, i)
	}
	return out
}

// take makes an entry for the next n bytes of m.
func (r *ring) take(m *move, n int, chunk int64, now time.Time) int {
	last := len(r.spare) - 1
	i := r.spare[last]
	r.spare = r.spare[:last]
	r.entries[i] = entry{state: ready, m: m, from: m.next, n: n, chunk: chunk, since: now}
	r.d.bytes += n
	m.next += n
	m.pending++
	m.since = now
	return i
}

// release frees an entry and its piece of the staging iov.
func (r *ring) release(i int) {
	invariants.Check(r.entries[i].state != free, "entry %d is released twice", i)
	if chunk := r.entries[i].chunk; chunk >= 0 {
		r.d.chunks = append(r.d.chunks, chunk)
	}
	r.d.bytes -= r.entries[i].n
	invariants.Check(r.d.bytes >= 0, "%d bytes are under way", r.d.bytes)
	r.entries[i] = entry{}
	r.spare = append(r.spare, i)
}

// flush hands the ready entries to the daemon. Its error is about the ring. Errors of
// single requests go to their moves, which are appended to due when they end.
func (r *ring) flush(due []*move) ([]*move, error) {
	handed, begunAny := 0, false
	for _, i := range r.ready {
		e := &r.entries[i]
		iov, at := r.d.staging, e.chunk
		if e.chunk < 0 {
			iov, at = e.m.iov, e.m.iovAt+int64(e.from)
		}
		_, err := r.ring.Prepare(usrbio.Request{
			File: e.m.file.f, FileOffset: e.m.op.Offset + int64(e.from),
			Iov: iov, IovOffset: at,
			Bytes: int64(e.n), Userdata: uint64(i),
		})
		if errors.Is(err, usrbio.ErrRingFull) {
			break // a real 3FS frees entries later than we do
		}
		if ringDead(err) {
			r.ready = slices.Delete(r.ready, 0, handed)
			return due, err
		}
		handed++
		if err != nil {
			e.m.fail(e.m.fileError(err))
			due = r.d.end(due, r, i)
			continue
		}
		r.d.begun++
		e.state, e.since, e.number, begunAny = begun, time.Now(), r.d.begun, true
	}
	r.ready = slices.Delete(r.ready, 0, handed)
	if !begunAny {
		return due, nil
	}
	select {
	case r.work <- struct{}{}:
	default:
	}
	return due, r.ring.Submit()
}

// idleLook is how often the waiter of an idle ring checks whether the daemon is still
// there.
const idleLook = time.Second

// wait collects completions until the ring or ctx ends.
func (r *ring) wait(ctx context.Context) error {
	done := make([]usrbio.Completion, len(r.entries))
	idle := time.NewTimer(idleLook)
	defer idle.Stop()
	for {
		looking := false
		if r.ring.InFlight() == 0 {
			idle.Reset(idleLook)
			select {
			case <-r.work:
				continue
			case <-ctx.Done():
				return nil
			case <-idle.C:
				looking = true
			}
		}
		n, err := r.collect(ctx, done, looking)
		if n > 0 {
			r.d.complete(r, done[:n])
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !(looking && errors.Is(err, context.DeadlineExceeded)):
			return err
		}
	}
}

// collect waits for a completion. With looking it waits only as long as it takes to find
// a ring dead.
func (r *ring) collect(ctx context.Context, done []usrbio.Completion, looking bool) (int, error) {
	if !looking {
		return r.ring.Wait(ctx, done, 1)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	return r.ring.Wait(ctx, done, 1)
}
