package index

import "math"

// order is the order in which the keys of a rank are evicted: some are ready to be
// evicted, the others wait until they may be.
//
// Readers change the last use and the lease of a key without updating the order, because
// they do not hold the lock for it. Both only grow, so a key is at worst too early in its
// queue, and is put right when it comes to the head. That happens at most once for each
// use.
type order struct {
	serial  []uint32 // by page: the serial of its only valid item in a queue
	ready   dueHeap  // by evictionPriority, the next victim first
	waiting dueHeap  // by the time when they are ready
}

// voidSlack is how many void items may stay in a queue.
const voidSlack = 1 << 10

// reset empties the queues, and allocates space for so many waiting keys.
func (o *order) reset(waiting int64) {
	o.ready, o.waiting = nil, make(dueHeap, 0, waiting)
}

func (o *order) valid(d due) bool { return o.serial[d.page] == d.serial }

// void removes a page from the order.
func (o *order) void(page uint32) { o.serial[page]++ }

// tidy removes void items when they are many.
func (o *order) tidy(keyed int64) {
	if int64(len(o.ready)+len(o.waiting)) <= 2*keyed+voidSlack {
		return
	}
	o.ready.filter(o.valid)
	o.waiting.filter(o.valid)
}

// list puts the page of a key into the order of its rank, in place of what it had there.
func (s *space) list(r *rank, page uint32, e *entry) {
	r.order.void(page)
	d := due{page: page, serial: r.order.serial[page]}
	if from := s.evictableFrom(e); from > 0 {
		d.at = from
		r.order.waiting.push(d)
	} else {
		d.at = s.evictionPriority(e)
		r.order.ready.push(d)
	}
	r.order.tidy(r.keyed)
}

// relist puts all pages of a key into the order.
func (s *space) relist(id uint32, e *entry) {
	e.unlisted = false
	for _, r := range s.ranks {
		if r.has(id) {
			s.list(r, r.page(id)-1, e)
		}
	}
}

// evictableFrom returns the time from which no client can still use a key's pages; 0 or
// less if no client was ever told of them. A key that is not complete has as long as a
// reservation lasts to become so.
func (s *space) evictableFrom(e *entry) int64 {
	from := e.leaseUntil.Load() + s.index.quarantine()
	if !e.complete {
		from = max(from, e.lastUse.Load()+s.index.reserve())
	}
	return from
}

// evictionPriority orders the keys that are ready; the lowest is evicted first: keys that
// are not complete, then the least recently used.
func (s *space) evictionPriority(e *entry) int64 {
	if !e.complete {
		return e.lastUse.Load() + math.MinInt64/2
	}
	return e.lastUse.Load()
}

// nextVictim chooses the key of a rank that is evicted next, and leaves it at the head of
// the ready queue. It counts down looks, and gives up at 0.
func (s *space) nextVictim(r *rank, now int64, looks *int) (id uint32, ok bool) {
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
			d.at = s.evictionPriority(e)
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
		from, priority := s.evictableFrom(e), s.evictionPriority(e)
		if !e.busy() && from <= now && priority == d.at {
			return id, true
		}
		o.ready.pop()
		switch {
		case e.busy():
			e.unlisted = true
		case from > now:
			d.at = from
			o.waiting.push(d)
		default:
			d.at = priority
			o.ready.push(d)
		}
	}
	return 0, false
}
