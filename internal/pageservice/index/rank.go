package index

import "math"

// rank is the pages of one file. What it needs grows with the pages that were ever
// used, not with those it was promised.
type rank struct {
	id       int
	numPages int64
	stale    bool // it does not count for completeness until it is heard of
	unsaid   bool // that it was heard of is not on the disk yet

	// closedUntil is when pages are given out again, after all were dropped.
	closedUntil int64

	pageOf []uint32 // by entry: 0, or its page + 1, or pageComing
	owner  []uint32 // by page that was ever used: 0, or entry + 1, or hold | heldBit
	free   []uint32 // the pages that were used and are nobody's

	holds    []hold
	spare    []uint32 // holds that are free
	due      dueHeap
	dueBound int // due is tidied when it is longer
	order    order

	reserved, keyed, quarantined int64
}

const (
	pageComing = math.MaxUint32 // a confirmation is on its way to the disk
	heldBit    = 1 << 31        // marks the number of a hold
)

// hold is a page that is neither free nor a key's.
type hold struct {
	state holdState
	busy  bool   // a change of it is on its way to the disk; it does not end
	hash  uint64 // of the key that it was reserved for
	at    int64  // when it was reserved
	until int64  // when the state ends
}

type holdState uint8

const (
	writable  holdState = iota + 1 // reserved; late when it ends
	late                           // the reservation ended: it rests, and may yet be confirmed
	givenUp                        // released: it rests, and may yet be confirmed
	forgotten                      // its key was deleted: it rests
)

// numFree counts the pages that are nobody's.
func (r *rank) numFree() int64 { return r.numPages - int64(len(r.owner)) + int64(len(r.free)) }

// take takes a page that is nobody's, if there is one, and holds it.
func (r *rank) take(h hold) (page uint32, ok bool) {
	if n := len(r.free); n > 0 {
		page, r.free = r.free[n-1], r.free[:n-1]
	} else if int64(len(r.owner)) < r.numPages {
		page = uint32(len(r.owner))
		r.use(page)
	} else {
		return 0, false
	}
	r.hold(page, h)
	return page, true
}

// hold makes a page that has no owner a hold.
func (r *rank) hold(page uint32, h hold) {
	r.assertOwner(page, r.owner[page] == 0, "nobody")
	var i uint32
	if n := len(r.spare); n > 0 {
		i, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		i = uint32(len(r.holds))
		r.holds = append(r.holds, hold{})
	}
	r.holds[i] = h
	r.owner[page] = heldBit | i
	*r.count(h.state)++
	if !h.busy {
		r.ends(page, h.until)
	}
}

// change gives a hold another state and end.
func (r *rank) change(page uint32, state holdState, until int64) {
	h := r.holdOf(page)
	r.assertOwner(page, h != nil, "a hold")
	*r.count(h.state)--
	*r.count(state)++
	h.state, h.until, h.busy = state, until, false
	r.ends(page, until)
}

// ends notes when a hold ends. Most holds are confirmed long before; what is noted of
// them is thrown away when there is twice as much as was left the last time.
func (r *rank) ends(page uint32, at int64) {
	r.due.push(due{at: at, page: page})
	if len(r.due) > r.dueBound {
		r.due.keep(func(d due) bool {
			h := r.holdOf(d.page)
			return h != nil && !h.busy && h.until == d.at
		})
		r.dueBound = 2*len(r.due) + voidSlack
	}
}

// drop ends a hold; the page has no owner then.
func (r *rank) drop(page uint32) {
	r.assertOwner(page, r.owner[page]&heldBit != 0, "a hold")
	i := r.owner[page] &^ heldBit
	*r.count(r.holds[i].state)--
	r.holds[i] = hold{}
	r.spare = append(r.spare, i)
	r.owner[page] = 0
}

// release makes a page that has no owner free.
func (r *rank) release(page uint32) {
	r.assertOwner(page, r.owner[page] == 0, "nobody")
	r.free = append(r.free, page)
}

func (r *rank) count(s holdState) *int64 {
	if s == writable {
		return &r.reserved
	}
	return &r.quarantined
}

// holdOf returns the hold of a page, or nil. It is good until the next hold.
func (r *rank) holdOf(page uint32) *hold {
	if o := r.owner[page]; o&heldBit != 0 {
		return &r.holds[o&^heldBit]
	}
	return nil
}

// use makes a page, and those before it, ones that were used.
func (r *rank) use(page uint32) {
	for int(page) >= len(r.owner) {
		r.owner = append(r.owner, 0)
		r.order.turn = append(r.order.turn, 0)
	}
}

// used tells whether a page was ever given out.
func (r *rank) used(page int64) bool { return page >= 0 && page < int64(len(r.owner)) }

// page returns where an entry is: 0 for nowhere, its page + 1, or pageComing.
func (r *rank) page(entry uint32) uint32 {
	if int(entry) < len(r.pageOf) {
		return r.pageOf[entry]
	}
	return 0
}

// has tells whether an entry has a page here.
func (r *rank) has(entry uint32) bool { p := r.page(entry); return p != 0 && p != pageComing }

// setPage sets where an entry is.
func (r *rank) setPage(entry, page uint32) {
	for int(entry) >= len(r.pageOf) {
		r.pageOf = append(r.pageOf, 0)
	}
	r.pageOf[entry] = page
}

// sweep ends what is over, and counts the reservations among it.
func (r *rank) sweep(now, quarantine int64) (expired int64) {
	for len(r.due) > 0 && r.due[0].at <= now {
		d := r.due.pop()
		h := r.holdOf(d.page)
		switch {
		case h == nil || h.busy || h.until != d.at:
			// It has changed since.
		case h.state == writable:
			expired++
			r.change(d.page, late, h.until+quarantine)
		default:
			r.drop(d.page)
			r.release(d.page)
		}
	}
	return expired
}
