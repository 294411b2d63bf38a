package index

import "math"

// order is the order in which the keys of a rank are evicted: some are ready, the
// others wait until they may be evicted.
//
// Readers change the last use and the lease of a key and do not tell the order, for
// they have no lock that would allow it. Both only grow. So a queue has a key too
// early at worst, and puts it right when it comes to the head: work that was paid for
// by the use, and never done twice for one.
type order struct {
	turn    []uint32 // by page: that of its only item in a queue; other items are void
	ready   dueHeap  // by worth
	waiting dueHeap  // by the time when they are ready
}

// voidSlack is how many void items are not worth the work of taking them out.
const voidSlack = 1 << 10

// reset empties the queues, and makes room for so many keys that wait.
func (o *order) reset(waiting int64) {
	o.ready, o.waiting = nil, make(dueHeap, 0, waiting)
}

func (o *order) valid(d due) bool { return o.turn[d.page] == d.turn }

// void takes a page out of the order.
func (o *order) void(page uint32) { o.turn[page]++ }

// tidy keeps the queues about as long as what is in them.
func (o *order) tidy(keyed int64) {
	if int64(len(o.ready)+len(o.waiting)) <= 2*keyed+voidSlack {
		return
	}
	o.ready.keep(o.valid)
	o.waiting.keep(o.valid)
}

// list puts the page of a key into the order of its rank, anew if need be.
func (s *space) list(r *rank, page uint32, e *entry) {
	r.order.void(page)
	d := due{page: page, turn: r.order.turn[page]}
	if from := s.evictableFrom(e); from > 0 {
		d.at = from
		r.order.waiting.push(d)
	} else {
		d.at = s.worth(e)
		r.order.ready.push(d)
	}
	r.order.tidy(r.keyed)
}

// relist puts all pages of a key into the order.
func (s *space) relist(id uint32, e *entry) {
	e.missed = false
	for _, r := range s.ranks {
		if r.has(id) {
			s.list(r, r.page(id)-1, e)
		}
	}
}

// evictableFrom is when nobody can have been told of a key's pages so recently that
// they must not be written; 0 or less when nobody ever was. A key that is not complete
// is given the time that a reservation lasts, to become so.
func (s *space) evictableFrom(e *entry) int64 {
	from := e.leaseUntil.Load() + s.index.quarantine()
	if !e.complete {
		from = max(from, e.lastUse.Load()+s.index.reserve())
	}
	return from
}

// worth orders the keys that are ready: first those that nobody completed.
func (s *space) worth(e *entry) int64 {
	if !e.complete {
		return e.lastUse.Load() + math.MinInt64/2
	}
	return e.lastUse.Load()
}

// first finds the key of a rank that is to be evicted first, and leaves it at the head
// of those that are ready. It counts down looks and gives up when there are none left.
func (s *space) first(r *rank, now int64, looks *int) (id uint32, ok bool) {
	o := &r.order
	for ; len(o.waiting) > 0 && o.waiting[0].at <= now && *looks > 0; *looks-- {
		d := o.waiting.pop()
		if !o.valid(d) {
			continue
		}
		e := s.entries.at(r.owner[d.page] - 1)
		if d.at = s.evictableFrom(e); d.at > now {
			o.waiting.push(d)
		} else {
			d.at = s.worth(e)
			o.ready.push(d)
		}
	}
	for ; len(o.ready) > 0 && *looks > 0; *looks-- {
		d := o.ready[0]
		if !o.valid(d) {
			o.ready.pop()
			continue
		}
		id = r.owner[d.page] - 1
		e := s.entries.at(id)
		from, worth := s.evictableFrom(e), s.worth(e)
		if !e.busy() && from <= now && worth == d.at {
			return id, true
		}
		o.ready.pop()
		switch {
		case e.busy():
			e.missed = true
		case from > now:
			d.at = from
			o.waiting.push(d)
		default:
			d.at = worth
			o.ready.push(d)
		}
	}
	return 0, false
}
