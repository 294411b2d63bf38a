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
	// refusalTime is how long no row is looked for where there was none to be had: what counts for others must not cost more.
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
// counts under no name, and in the end it is lost.
func (h *Held) Gone() bool { return h.gone.Load() }

// Table has the rows. Its methods may be called concurrently; Of takes no lock for a name that has a row.
type Table[K comparable, R Row[R]] struct {
	most  int
	fresh func() R
	now   func() time.Time

	state  atomic.Pointer[state[K, R]] // replaced as a whole
	nobody *user                       // all who have no row: if there is none to be had for one of them, there is none for another
	other  R

	mu     sync.Mutex // held while state is replaced
	given  []R        // rows that were given away and may still be counted in, oldest first
	former R          // what earlier ones have counted
}

type state[K comparable, R any] struct {
	entries map[K]*entry[R]
	users   map[uint32]*user // who have rows
}

type entry[R any] struct {
	row R
	uid uint32 // of who named it first
	of  *user

	// Guarded by Table.mu.
	total int64
	used  time.Time // when total was last seen to have changed
}

type user struct {
	rows  int                       // guarded by Table.mu
	until atomic.Pointer[time.Time] // when a row is looked for again; nil: at any time
}

func (u *user) refused(now time.Time) bool {
	until := u.until.Load()
	return until != nil && now.Before(*until)
}

func (s *state[K, R]) user(uid uint32, otherwise *user) *user {
	if u, ok := s.users[uid]; ok {
		return u
	}
	return otherwise
}

// New returns a table of at most that many rows beside the one for others. fresh makes a row that has counted nothing.
func New[K comparable, R Row[R]](most int, fresh func() R) *Table[K, R] {
	return newTable[K](most, fresh, time.Now)
}

func newTable[K comparable, R Row[R]](most int, fresh func() R, now func() time.Time) *Table[K, R] {
	t := &Table[K, R]{most: most, fresh: fresh, now: now, nobody: new(user), other: fresh(), former: fresh()}
	t.state.Store(&state[K, R]{map[K]*entry[R]{}, map[uint32]*user{}})
	return t
}

// Of returns where what a user does under a name counts.
func (t *Table[K, R]) Of(uid uint32, name K) R {
	is := t.state.Load()
	if e, ok := is.entries[name]; ok {
		return e.row
	}
	now := t.now()
	if is.user(uid, t.nobody).refused(now) {
		return t.other
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	is = t.state.Load()
	if e, ok := is.entries[name]; ok {
		return e.row
	}
	of, full := is.user(uid, t.nobody), len(is.entries) >= t.most
	var old K
	if full {
		if of.refused(now) {
			return t.other
		}
		spare, ok := t.spare(of, now)
		if !ok {
			until := now.Add(refusalTime)
			of.until.Store(&until)
			return t.other
		}
		old = spare
	}
	next := &state[K, R]{maps.Clone(is.entries), maps.Clone(is.users)}
	if full {
		t.give(next, old)
	}
	if of == t.nobody {
		of = new(user)
	}
	e := &entry[R]{row: t.fresh(), uid: uid, of: of, used: now}
	of.rows++
	next.entries[name], next.users[uid] = e, of
	t.state.Store(next)
	return e.row
}

// Known returns the row of a name that has one.
func (t *Table[K, R]) Known(name K) (r R, ok bool) {
	if e, ok := t.state.Load().entries[name]; ok {
		return e.row, true
	}
	return r, false
}

// spare returns the name whose row goes to a name of a user: of whoever has most, the one that was not used for longest. A user who would then
// have as many as the one who loses it gets only what is idle. The caller holds mu.
func (t *Table[K, R]) spare(of *user, now time.Time) (name K, ok bool) {
	var best *entry[R]
	for k, e := range t.state.Load().entries {
		if total := e.row.Total(); total != e.total {
			e.total, e.used = total, now
		}
		idle := now.Sub(e.used) >= IdleTime
		if e.of.rows <= of.rows+1 && !(idle && (e.of == of || e.of.rows > of.rows)) {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(best.of.rows, e.of.rows), e.used.Compare(best.used), cmp.Compare(e.total, best.total)) < 0 {
			name, best = k, e
		}
	}
	return name, best != nil
}

// give takes a row from its name, in what is to be the state. Who is about to count in it is still heard. The caller holds mu.
func (t *Table[K, R]) give(next *state[K, R], name K) {
	e := next.entries[name]
	delete(next.entries, name)
	if e.of.rows--; e.of.rows == 0 {
		delete(next.users, e.uid)
	}
	e.row.held().gone.Store(true)
	if t.given = append(t.given, e.row); len(t.given) > t.most {
		t.former.Add(t.given[0])
		t.given = t.given[1:]
	}
}

// Other returns the row for all others, to count in.
func (t *Table[K, R]) Other() R { return t.other }

// All returns the rows by name, the one for others, and what was counted under names that have lost their row. No row jumps because another one is
// given away; what is shown over time as a counter has no use for former. The sum of all never falls.
func (t *Table[K, R]) All() (named map[K]R, other, former R) {
	t.mu.Lock()
	defer t.mu.Unlock()
	named, former = map[K]R{}, t.fresh()
	for k, e := range t.state.Load().entries {
		named[k] = e.row
	}
	former.Add(t.former)
	for _, r := range t.given {
		former.Add(r)
	}
	return named, t.other, former
}
