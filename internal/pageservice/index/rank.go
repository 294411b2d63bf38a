package index

import "math"

// rank holds the owners of the pages of one file. Its memory grows with the pages that
// were ever used, not with numPages.
type rank struct {
	id       int
	numPages int64
	stale    bool // it does not count for completeness until its next request
	unlogged bool // the log still has it as stale or closed

	// closedUntil is when pages are given out again after all were dropped.
	closedUntil int64

	pageOf []uint32 // by entry: 0, or its page + 1, or pagePending
	owner  []uint32 // by page, for those ever used: 0, or entry + 1, or hold | heldBit
	free   []uint32 // pages among those that have no owner
	kept   []uint32 // the others among those: the log says so, too; see keptfree.go

	refilling int64 // pages that are to be kept free, once that is in the log
	mentioned int   // the log may say something of pages below this, even if none was used since

	holds    []hold
	spare    []uint32 // unused elements of holds
	due      dueHeap
	dueBound int // the length of due at which void events are removed
	order    order

	reserved, keyed, quarantined int64

	promised int64 // see hold.promise
	trimmed  int   // see trim
	toLog    int   // see logTrimmed
}

const (
	pagePending = math.MaxUint32 // a confirmation is being logged
	heldBit     = 1 << 31        // marks an index of holds
)

// hold describes a page that is reserved or in quarantine.
type hold struct {
	state     holdState
	busy      bool   // a change of it is being logged; until then it does not end
	textBytes uint16 // of the key that it was reserved for; 0 after a restart
	hash      uint64 // of that key
	at        int64  // when the page was reserved
	until     int64  // when the state ends
}

type holdState uint8

const (
	writable holdState = iota + 1 // reserved; becomes late at its end
	late                          // the reservation ended: in quarantine, may still be confirmed
	givenUp                       // released: in quarantine, may still be confirmed
	deleted                       // its key was deleted: in quarantine
)

// numFree returns the number of pages without an owner.
func (r *rank) numFree() int64 {
	return r.numPages - int64(len(r.owner)) + int64(len(r.free)+len(r.kept))
}

// take makes a free page a hold. There must be one. Those that a restart would find free come last.
func (r *rank) take(h hold) (page uint32) {
	unused := int64(len(r.owner)) < r.numPages
	switch nFree, nKept := len(r.free), len(r.kept); {
	case nFree > 0:
		page, r.free = r.free[nFree-1], r.free[:nFree-1]
	case nKept > 0 && !(unused && len(r.owner) < r.mentioned):
		page, r.kept = r.kept[nKept-1], r.kept[:nKept-1]
	default:
		page = uint32(len(r.owner))
		r.use(page)
	}
	r.hold(page, h)
	return page
}

// hold makes a page without an owner a hold.
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
	r.promised += h.promise()
	r.owner[page] = heldBit | i
	*r.count(h.state)++
	if !h.busy {
		r.ends(page, h.until)
	}
}

// change changes the state and the end of a hold.
func (r *rank) change(page uint32, state holdState, until int64) {
	h := r.holdOf(page)
	r.assertOwner(page, h != nil, "a hold")
	*r.count(h.state)--
	*r.count(state)++
	r.promised -= h.promise()
	h.state, h.until, h.busy = state, until, false
	r.promised += h.promise()
	r.ends(page, until)
}

// ends records when a hold ends. Most holds are confirmed long before: their events are
// removed whenever there are twice as many as were left the last time.
func (r *rank) ends(page uint32, at int64) {
	r.due.push(due{at: at, page: page})
	if len(r.due) > r.dueBound {
		r.due.filter(func(d due) bool {
			h := r.holdOf(d.page)
			return h != nil && !h.busy && h.until == d.at
		})
		r.dueBound = 2*len(r.due) + voidSlack
	}
}

// drop ends a hold; the page has no owner afterwards.
func (r *rank) drop(page uint32) {
	r.assertOwner(page, r.owner[page]&heldBit != 0, "a hold")
	i := r.owner[page] &^ heldBit
	*r.count(r.holds[i].state)--
	r.promised -= r.holds[i].promise()
	r.holds[i] = hold{}
	r.spare = append(r.spare, i)
	r.owner[page] = 0
}

// release makes a page without an owner free.
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

// holdOf returns the hold of a page, or nil. It is valid until the next call of hold.
func (r *rank) holdOf(page uint32) *hold {
	if o := r.owner[page]; o&heldBit != 0 {
		return &r.holds[o&^heldBit]
	}
	return nil
}

// use marks a page, and all before it, as used.
func (r *rank) use(page uint32) {
	for int(page) >= len(r.owner) {
		r.owner = append(r.owner, 0)
		r.order.serial = append(r.order.serial, 0)
	}
}

// used reports whether a page was ever given out.
func (r *rank) used(page int64) bool { return page >= 0 && page < int64(len(r.owner)) }

// page returns the page of an entry + 1, or 0, or pagePending.
func (r *rank) page(entry uint32) uint32 {
	if int(entry) < len(r.pageOf) {
		return r.pageOf[entry]
	}
	return 0
}

// has reports whether an entry has a page on this rank.
func (r *rank) has(entry uint32) bool { p := r.page(entry); return p != 0 && p != pagePending }

// setPage sets what page returns.
func (r *rank) setPage(entry, page uint32) {
	for int(entry) >= len(r.pageOf) {
		r.pageOf = append(r.pageOf, 0)
	}
	r.pageOf[entry] = page
}

// sweep ends the holds that are over, and counts the reservations among them.
func (r *rank) sweep(now, quarantine int64) (expired int64) {
	for len(r.due) > 0 && r.due[0].at <= now {
		d := r.due.pop()
		h := r.holdOf(d.page)
		switch {
		case h == nil || h.busy || h.until != d.at:
			// The hold has changed since.
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
