package ringserver

import (
	"slices"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// deepCheck bounds the sets whose every element is checked after each change.
const deepCheck = 256

// checkInvariants asserts that the fields of the ring agree. The caller holds mu.
func (r *ring) checkInvariants() {
	inflight, queued := r.inflight.n, len(r.queued)
	invariants.Check(r.refs >= 0, "ring: %d references", r.refs)
	invariants.Check(r.refs > 0 || r.closed, "ring: unmapped while it is registered")
	invariants.Check(r.refs > 0 || inflight == 0, "ring: unmapped with %d requests in flight", inflight)
	invariants.Check(r.broken == nil || inflight == 0, "ring: detached with %d requests in flight", inflight)
	invariants.Check(inflight <= int(r.freeSlots), "ring: %d requests in flight, %d completion slots", inflight, r.freeSlots)
	if inflight > deepCheck {
		return
	}
	var n, inQueuedState int
	for q := r.inflight.first; q != nil; q = q.next {
		n++
		s := q.state.Load()
		if s == stateQueued {
			inQueuedState++
		}
		invariants.Check(!q.posted, "request %d: in flight after its completion", q.index)
		invariants.Check(s < stateAnswered || s == stateAnswered && q.needsDetach, "request %d: in flight in state %d", q.index, s)
	}
	invariants.Check(n == inflight, "ring: %d requests linked, %d counted", n, inflight)
	invariants.Check(inQueuedState == queued, "ring: %d requests in state queued, %d in the queue", inQueuedState, queued)
	var waiting int64
	for _, q := range r.queued {
		waiting += q.piece
		invariants.Check(r.inflight.has(q), "request %d: queued and not in flight", q.index)
	}
	invariants.Check(waiting == r.queuedBytes, "ring: %d bytes are queued, %d counted", waiting, r.queuedBytes)
}

// checkInvariants asserts that the indices of the table agree. The caller holds mu.
func (t *table) checkInvariants() {
	users := int(t.places.Total())
	invariants.Check(len(t.byName) == len(t.byIndex) && len(t.byName) == users && users <= t.max,
		"table of %d: %d names, %d indices, %d places taken", t.max, len(t.byName), len(t.byIndex), users)
	if users > deepCheck {
		return
	}
	for name, e := range t.byName {
		invariants.Check(e.Name == name && t.byIndex[e.Index] == e, "table: %s is not at index %d", name, e.Index)
		if e.iov == nil {
			continue
		}
		v := t.buffer(e.link.ID)
		for v != nil && v != e.iov {
			v = v.shadows
		}
		invariants.Check(v == e.iov, "table: no request can find the iov %s", name)
	}
}

// checkInvariants asserts that the maps of owners agree. The caller holds mu.
func (o *owners) checkInvariants() {
	invariants.Check(int(o.processes.Total()) == len(o.byID) && int(o.opened.Total()) == len(o.handles),
		"owners: %d processes, %d counted; %d handles, %d counted", len(o.byID), o.processes.Total(), len(o.handles), o.opened.Total())
	if len(o.handles) > deepCheck {
		return
	}
	dirs := map[*owner]int{}
	for _, h := range o.handles {
		dirs[h.owner]++
	}
	delete(dirs, nil) // of processes that cannot be seen
	for w, n := range dirs {
		invariants.Check(w.dirs == n, "owner %d: %d open handles, %d counted", w.id, n, w.dirs)
	}
	for id, w := range o.byID {
		invariants.Check(w.id == id && w.pidfd >= 0 && !w.gone, "owner %d: watched, but its process %d has exited", id, w.tgid)
		invariants.Check(len(w.entries) > 0 || w.dirs > 0 || len(w.shms) > 0, "owner %d: watched, but owns nothing", id)
		invariants.Check(w.dirs == dirs[w], "owner %d: %d open handles, %d counted", id, dirs[w], w.dirs)
	}
	for tgid, w := range o.byTgid {
		invariants.Check(w.tgid == tgid && o.byID[w.id] == w, "owner of process %d: not watched", tgid)
	}
}

// has reports whether the poller serves r.
func (p *poller) has(r *ring) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.users[r.cred.UID]
	return u != nil && slices.Contains(u.rings, r)
}
