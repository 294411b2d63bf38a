package lookups

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/rows"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

const (
	// makeTime bounds how long after it has looked up a name the kernel makes it. countTime is when a miss counts: no kernel takes that long.
	makeTime  = time.Second
	countTime = 3 * makeTime
	// askTime is how long a name that was missed does not count again.
	askTime = time.Minute
	// mostMissing bounds the names that are remembered for that.
	mostMissing = 1 << 14
	// mostRows bounds the pairs of engine and model that are counted apart: users make names, see rows.
	mostRows = 32
	// shardTime is how far apart the parts of one block are read at most, where each is read through a descriptor of its own.
	shardTime = time.Second
	mostParts = 1 << 14
)

// Count is what was looked up of a model by an engine.
type Count struct {
	Engine string // a name of classify.Owner; "" for all that have no row of their own
	Model  string // as valid UTF-8; "" where names do not tell it
	Hits   int64
	Misses int64
}

// Counter counts. Its methods may be called concurrently; a nil one counts nothing.
type Counter struct {
	now  func() time.Time
	seed maphash.Seed

	rows *rows.Table[rowKey, *row]

	mu      sync.Mutex
	missing map[uint64]*missing // by the hash of the path of an entry
	asked   []asked             // the same, oldest first, with some that are gone
	parts   map[uint64]time.Time
	roots   roots
}

type rowKey struct{ engine, model string }

type row struct {
	rows.Held
	hits, misses atomic.Int64
}

// Total implements rows.Row.
func (r *row) Total() int64 { return r.hits.Load() + r.misses.Load() }

// Add implements rows.Row.
func (r *row) Add(from *row) {
	r.hits.Add(from.hits.Load())
	r.misses.Add(from.misses.Load())
}

// missing is a name that is not there.
type missing struct {
	row     *row
	times   int // it was looked up
	first   time.Time
	counted bool
}

type asked struct {
	key uint64
	at  time.Time // missing.first
}

// New returns a counter of nothing.
func New() *Counter { return newCounter(time.Now) }

func newCounter(now func() time.Time) *Counter {
	return &Counter{now: now, seed: maphash.MakeSeed(), rows: rows.New[rowKey](mostRows, func() *row { return new(row) }), missing: map[uint64]*missing{}, parts: map[uint64]time.Time{}, roots: newRoots()}
}

// rowOf returns where files of an owner and a model count, which a user has named.
func (c *Counter) rowOf(owner classify.Owner, model string, uid uint32) *row {
	return c.rows.Of(uid, rowKey{owner.String(), strings.ToValidUTF8(model, "?")})
}

// miss counts a name that was missed.
func (c *Counter) miss(m *missing) {
	r := m.row
	if r.Gone() {
		r = c.rows.Other()
	}
	r.misses.Add(1)
}

// isBlock reports whether a file is one that engines look up and read: a whole entry, or what says that it is there.
func isBlock(f classify.File) bool { return f.Blocks > 0 && !f.Temp }

// Missing says that the kernel has looked up a name for a user, that is not there. Paths are relative to the data directory.
func (c *Counter) Missing(path string, uid uint32) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, r := c.lookedUp(path, uid)
	if r == nil {
		return
	}
	now := c.now()
	c.settle(now)
	key := maphash.String(c.seed, entry)
	m := c.missing[key]
	if m == nil {
		if len(c.asked) >= mostMissing {
			c.drop(c.asked[0])
			c.asked = c.asked[1:]
		}
		m = &missing{row: r, first: now}
		c.missing[key] = m
		c.asked = append(c.asked, asked{key, now})
	}
	m.times++
}

// lookedUp returns the entry that a name is of, and where its misses count; nil: nowhere. The caller holds mu.
func (c *Counter) lookedUp(path string, uid uint32) (entry string, r *row) {
	f := c.classify(path, uid)
	if isBlock(f) {
		return f.Entry, c.rowOf(f.Owner, f.Model, uid)
	}
	if in, ok := c.roots.spreadBelow(path); ok {
		return path, c.rowOf(in.owner, in.model, uid)
	}
	return "", nil
}

// Making says that a user is about to make or to replace a name. fresh: the kernel has looked it up for that, whatever it
// remembers; else it may have known that there is none.
func (c *Counter) Making(path string, uid uint32, fresh bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteMark(path, uid)
	if len(c.missing) == 0 {
		return
	}
	entry := path
	if f := c.classify(path, uid); isBlock(f) {
		entry = f.Entry
	}
	key := maphash.String(c.seed, entry)
	m := c.missing[key]
	if m == nil {
		return
	}
	delete(c.missing, key)
	if !m.counted && (m.times > 1 || !fresh && c.now().Sub(m.first) > makeTime) { // else it was looked up to be made
		c.miss(m)
	}
}

// Found says that a name is there, and whose it is.
func (c *Counter) Found(path string, uid uint32) {
	if c == nil || !isMark(path) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteMark(path, uid)
}

// settle counts the names that nobody has made soon after they were missed, and forgets the old ones. The caller holds mu.
func (c *Counter) settle(now time.Time) {
	for len(c.asked) > 0 && now.Sub(c.asked[0].at) > askTime {
		c.drop(c.asked[0])
		c.asked = c.asked[1:]
	}
}

// drop forgets a name, which counts. The caller holds mu.
func (c *Counter) drop(a asked) {
	m := c.missing[a.key]
	if m == nil || !m.first.Equal(a.at) {
		return
	}
	delete(c.missing, a.key)
	if !m.counted {
		c.miss(m)
	}
}

// Counts returns what was counted, by engine and model in order of their names, others last if there are any; and beside it
// what counted by pairs that have lost their row, see rows.Table.All. What was missed in the last seconds may be missing from it.
func (c *Counter) Counts() (all []Count, former Count) {
	if c == nil {
		return nil, Count{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.settle(now)
	for _, m := range c.missing {
		if !m.counted && now.Sub(m.first) > countTime {
			m.counted = true
			c.miss(m)
		}
	}
	named, others, lost := c.rows.All()
	all = make([]Count, 0, len(named)+1)
	for k, r := range named {
		all = append(all, Count{k.engine, k.model, r.hits.Load(), r.misses.Load()})
	}
	slices.SortFunc(all, func(a, b Count) int {
		return cmp.Or(strings.Compare(a.Engine, b.Engine), strings.Compare(a.Model, b.Model))
	})
	if other := (Count{Hits: others.hits.Load(), Misses: others.misses.Load()}); other != (Count{}) {
		all = append(all, other)
	}
	return all, Count{Hits: lost.hits.Load(), Misses: lost.misses.Load()}
}
