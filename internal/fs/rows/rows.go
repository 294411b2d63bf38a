// Package rows keeps a bounded number of rows of counters under names that users invent, and what else counts in one row for all others. A user
// who invents many names takes rows from nobody who has fewer.
package rows

import (
	"cmp"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// IdleTime is after what time without use a row may go to another name of its user, or of a user who has fewer.
	IdleTime = time.Hour
	// refusalTime is how long a user whose name got no row is not looked at again: what counts for others must not cost more.
	refusalTime = 100 * time.Millisecond
)

// Row counts what belongs to a name. Its methods may be called concurrently.
type Row[R any] interface {
	Total() int64 // how much was counted; a row whose total stays is not in use
	Add(R)        // adds what another row has counted
	held() *Held
}

// Held is part of every row.
type Held struct{ gone atomic.Bool }

func (h *Held) held() *Held { return h }

// Gone reports whether the row was given to another name. Whoever keeps a row for long asks, and then asks the table again: what is counted in it
// still counts as others', but in the end it is lost.
func (h *Held) Gone() bool { return h.gone.Load() }

// Table has the rows. Its methods may be called concurrently; Of takes no lock for a name that has a row.
type Table[K comparable, R Row[R]] struct {
	most  int
	fresh func() R
	now   func() time.Time

	known   atomic.Pointer[map[K]*entry[R]] // replaced as a whole
	refused atomic.Pointer[refusal]
	other   R

	mu    sync.Mutex // held while known is replaced
	given []R        // rows that were given away and may still be counted in, oldest first
}

type entry[R any] struct {
	row R
	uid uint32 // of who named it first

	// Guarded by Table.mu.
	total int64
	used  time.Time // when total was last seen to have changed
}

type refusal struct {
	uid   uint32
	until time.Time
}

// New returns a table of at most that many rows beside the one for others. fresh makes a row that has counted nothing.
func New[K comparable, R Row[R]](most int, fresh func() R) *Table[K, R] {
	return newTable[K](most, fresh, time.Now)
}

func newTable[K comparable, R Row[R]](most int, fresh func() R, now func() time.Time) *Table[K, R] {
	t := &Table[K, R]{most: most, fresh: fresh, now: now, other: fresh()}
	t.known.Store(&map[K]*entry[R]{})
	return t
}

// Of returns where what a user does under a name counts.
func (t *Table[K, R]) Of(uid uint32, name K) R {
	if e, ok := (*t.known.Load())[name]; ok {
		return e.row
	}
	now := t.now()
	if r := t.refused.Load(); r != nil && r.uid == uid && now.Before(r.until) {
		return t.other
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	known := *t.known.Load()
	if e, ok := known[name]; ok {
		return e.row
	}
	next := maps.Clone(known)
	if len(known) >= t.most {
		old, ok := t.spare(uid, now)
		if !ok {
			t.refused.Store(&refusal{uid, now.Add(refusalTime)})
			return t.other
		}
		t.give(known[old].row)
		delete(next, old)
	}
	e := &entry[R]{row: t.fresh(), uid: uid, used: now}
	next[name] = e
	t.known.Store(&next)
	return e.row
}

// Known returns the row of a name that has one.
func (t *Table[K, R]) Known(name K) (r R, ok bool) {
	if e, ok := (*t.known.Load())[name]; ok {
		return e.row, true
	}
	return r, false
}

// spare returns the name whose row goes to a name of a user: of whoever has most, the one that was not used for longest. A user who would then
// have as many as the one who loses it gets only what is idle. The caller holds mu.
func (t *Table[K, R]) spare(uid uint32, now time.Time) (name K, ok bool) {
	known, rows := *t.known.Load(), map[uint32]int{}
	for _, e := range known {
		rows[e.uid]++
		if total := e.row.Total(); total != e.total {
			e.total, e.used = total, now
		}
	}
	var best *entry[R]
	for k, e := range known {
		idle := now.Sub(e.used) >= IdleTime
		mine, theirs := rows[uid], rows[e.uid]
		if theirs <= mine+1 && !(idle && (e.uid == uid || theirs > mine)) {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(rows[best.uid], theirs), e.used.Compare(best.used), cmp.Compare(e.total, best.total)) < 0 {
			name, best = k, e
		}
	}
	return name, best != nil
}

// give takes a row from its name. Who is about to count in it is still heard. The caller holds mu.
func (t *Table[K, R]) give(row R) {
	row.held().gone.Store(true)
	if t.given = append(t.given, row); len(t.given) > t.most {
		t.other.Add(t.given[0])
		t.given = t.given[1:]
	}
}

// Other returns the row for all others, to count in.
func (t *Table[K, R]) Other() R { return t.other }

// All returns the rows by name, and what was counted for others and under names that have lost their row. The sum never falls.
func (t *Table[K, R]) All() (named map[K]R, others R) {
	t.mu.Lock()
	defer t.mu.Unlock()
	named, others = map[K]R{}, t.fresh()
	for k, e := range *t.known.Load() {
		named[k] = e.row
	}
	others.Add(t.other)
	for _, r := range t.given {
		others.Add(r)
	}
	return named, others
}
