package index

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	testseed "github.com/kv3fs/kv3fs/internal/test/seed"
)

// hosts simulates three hosts that share a log, and what surrounds them: a clock, the page files with the bytes that were written,
// writers that write late, and readers that read as long as their lease allows. One host leads; the others follow at random
// distances, take snapshots, and begin again. Any of them may be the next to lead, at any moment.
type hosts struct {
	rng   *rand.Rand
	clock *manual
	o     Options
	log   *sharedLog
	all   []*simHost

	leader  *simHost
	deposed *simHost // it still answers from memory
	until   time.Time

	files   map[filePage]string // the key whose bytes are there
	writers []*simWriter
	readers []simReader
	trace   []string
}

// simHost is one host: first its index reads the log, then it leads.
type simHost struct {
	name   int
	log    *hostLog
	opened chan error
	x      *Index
	small  bool // too little memory for everything
}

type filePage struct {
	space pageservice.Space
	rank  int
	page  int64
}

type simWriter struct {
	filePage
	key     string
	until   time.Time // it may write until then
	present bool      // the key was there
	wrote   bool
}

type simReader struct {
	filePage
	key   string
	until time.Time
}

var simSpaces = []pageservice.Space{{Namespace: "m", Set: "vllm"}, {Namespace: "m", Set: "sglang/kv/0"}, {Set: "vllm"}}

// simHandover is how long a host may answer from memory after another has taken the lead.
const simHandover = 5 * time.Second

// simFewBytes suffices for the ranks of all spaces, and for the keys of two spaces.
const simFewBytes = 3*(spaceBytes+3*rankBytes) + 2*slabLen*entryBytes + 16<<10

func newHosts(rng *rand.Rand) *hosts {
	h := &hosts{rng: rng, clock: newClock(), log: &sharedLog{hashes: map[int]uint64{}}, files: map[filePage]string{}}
	h.o = Options{Now: h.clock.now, Handover: simHandover, searchBound: 1 + rng.IntN(3)}
	h.o.World = rng.IntN(3)
	h.o.Free = float64(rng.IntN(3)) / 4
	h.o.Options = h.o.WithDefaults()
	for name := range 3 {
		h.all = append(h.all, &simHost{name: name})
		h.start(h.all[name])
	}
	return h
}

func (h *hosts) tell(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf(format, args...))
}

// start starts a host anew; it follows.
func (h *hosts) start(s *simHost) {
	s.log = &hostLog{shared: h.log, calls: make(chan func(pageservice.LogOwner))}
	s.opened, s.x = make(chan error), nil
	o := h.o
	if s.small = h.rng.IntN(12) == 0; s.small {
		o.MemoryBytes = simFewBytes
	}
	go func() {
		x, err := Open(s.log, o)
		s.x = x
		s.opened <- err
	}()
}

// end has the goroutine of a host that follows end.
func (s *simHost) end() {
	if s.x == nil {
		close(s.log.calls)
		<-s.opened
	}
}

// promote makes a host that follows the leader.
func (h *hosts) promote(s *simHost) error {
	if err := s.log.follow(h.rng, h.log.len()); err != nil {
		return err
	}
	close(s.log.calls)
	// What the index logs at once nobody waits for, or it writes itself.
	if err := <-s.opened; err != nil {
		return err
	}
	h.leader = s
	s.log.compact = h.rng.IntN(3) * h.rng.IntN(8)
	return s.x.Check()
}

// entries returns what a host that leads says of its keys.
func (h *hosts) entries(s *simHost) (map[filePage]string, error) {
	all := map[filePage]string{}
	for _, space := range simSpaces {
		list, err := s.x.List(ctx, space, "", 1000)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			for rank, page := range e.Pages {
				all[filePage{space, rank, page}] = e.Key
			}
		}
	}
	return all, nil
}

// fail ends the leader, and another host leads: at once, and the former one may answer a little longer.
func (h *hosts) fail() error {
	old := h.leader
	before, err := h.entries(old)
	if err != nil {
		return err
	}
	whole := !old.small
	if lands := h.rng.IntN(2) == 0; lands && len(old.log.pending) > 0 {
		whole = whole && !slices.ContainsFunc(old.log.pending, (*pendingWrite).removes)
		h.tell("%d writes land", len(old.log.pending))
		old.log.flush()
	}
	old.log.demoted = true
	old.log.flush()
	next := h.all[(old.name+1+h.rng.IntN(2))%3]
	h.clock.advance(time.Duration(h.rng.IntN(3)) * time.Second)
	h.tell("host %d leads after host %d", next.name, old.name)
	if err := h.promote(next); err != nil {
		return err
	}
	if h.deposed = nil; h.rng.IntN(2) == 0 {
		h.deposed, h.until = old, h.clock.now().Add(simHandover)
	}
	if after, err := h.entries(next); err != nil {
		return err
	} else if whole && !next.small {
		for at, key := range before {
			if after[at] != key {
				return fmt.Errorf("%q was confirmed at %v, and the next leader has %q there", key, at, after[at])
			}
		}
	}
	dead := &simHost{name: old.name}
	h.start(dead)
	h.all[old.name] = dead
	return nil
}

// removes reports whether a write may take a page from a key.
func (w *pendingWrite) removes() bool {
	return slices.ContainsFunc(w.recs, func(b []byte) bool {
		var rec record
		return rec.decode(b) != nil || !(rec.kind == confirmed || rec.kind == reopened || rec.kind == rankSet && !rec.dropped)
	})
}

// expected are errors that say that a call could not be done.
func expected(err error) error {
	for _, e := range []error{pageservice.ErrUnknownRank, pageservice.ErrUnavailable, pageservice.ErrInUse, pageservice.ErrFull, context.Canceled} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

func (h *hosts) space() pageservice.Space { return simSpaces[h.rng.IntN(len(simSpaces))] }

func (h *hosts) keys(most int) (keys []string) {
	for range 1 + h.rng.IntN(most) {
		keys = append(keys, string(rune('a'+h.rng.IntN(10))))
	}
	return keys
}

// reserve reserves pages, and checks that nobody uses those.
func (h *hosts) reserve(ctx context.Context, x *Index, space pageservice.Space, rank int, keys []string) (got []*simWriter, err error) {
	grants, err := x.Reserve(ctx, space, rank, keys, h.rng.IntN(2) == 0)
	if err != nil {
		return nil, err
	}
	now, seen := h.clock.now(), map[string]bool{}
	for i, g := range grants {
		if g.Page == pageservice.None || seen[keys[i]] {
			continue
		}
		seen[keys[i]] = true
		at := filePage{space, rank, g.Page}
		w := &simWriter{filePage: at, key: keys[i], until: now.Add(h.o.Reserve + h.o.Quarantine), present: g.Present}
		h.tell("%v is reserved for %q, present %t", at, w.key, w.present)
		if g.Present {
			if h.files[at] != w.key {
				return nil, fmt.Errorf("%q is said to be at %v, where %q is", w.key, at, h.files[at])
			}
		} else if err := h.mustBeIdle(at); err != nil {
			return nil, err
		}
		got = append(got, w)
	}
	h.writers = append(h.writers, got...)
	return got, nil
}

// mustBeIdle returns an error if a client may use a page.
func (h *hosts) mustBeIdle(at filePage) error {
	now := h.clock.now()
	for _, w := range h.writers {
		if w.filePage == at && w.until.After(now) {
			return fmt.Errorf("%v was given to a writer, and another may write %q for %v", at, w.key, w.until.Sub(now))
		}
	}
	for _, r := range h.readers {
		if r.filePage == at && r.until.After(now) {
			return fmt.Errorf("%v was given to a writer, and a reader may read %q for %v", at, r.key, r.until.Sub(now))
		}
	}
	return nil
}

func (h *hosts) write(w *simWriter) error {
	h.files[w.filePage] = w.key
	w.wrote = true
	for _, r := range h.readers {
		if r.filePage == w.filePage && r.key != w.key && r.until.After(h.clock.now()) {
			return fmt.Errorf("%v: %q is being read, %q is written", r.filePage, r.key, w.key)
		}
	}
	return nil
}

// confirm writes and confirms the page of a writer, which then writes no more, or releases it.
func (h *hosts) confirm(ctx context.Context, w *simWriter, release bool) error {
	now := h.clock.now()
	if !w.until.After(now) {
		return nil
	}
	var written []pageservice.Placed
	var given []int64
	if release {
		given = []int64{w.page}
	} else {
		if err := h.write(w); err != nil {
			return err
		}
		written = []pageservice.Placed{{Key: w.key, Page: w.page}}
	}
	c, err := h.leader.x.Confirm(ctx, w.space, w.rank, written, given)
	h.tell("%q at %v: confirmed %v, release %t: %+v %v", w.key, w.filePage, written, release, c, err)
	w.until = now
	return expected(err)
}

// locate reads keys, from a host that leads or has just led.
func (h *hosts) locate(x *Index, space pageservice.Space, rank int, keys []string) error {
	if s := x.find(space); s != nil && s.exclusive && s.ranks[rank] != nil && s.ranks[rank].stale {
		return nil // it would wait
	}
	at, err := x.Locate(ctx, space, rank, keys)
	for i, page := range at {
		if page == pageservice.None {
			continue
		}
		r := simReader{filePage{space, rank, page}, keys[i], h.clock.now().Add(h.o.Lease + h.o.Quarantine)}
		if h.files[r.filePage] != r.key {
			return fmt.Errorf("%q is said to be at %v, where %q is", r.key, r.filePage, h.files[r.filePage])
		}
		h.tell("%q is read at %v", r.key, r.filePage)
		h.readers = append(h.readers, r)
	}
	return expected(err)
}

// step does one thing.
func (h *hosts) step() error {
	x, space, rank, l := h.leader.x, h.space(), h.rng.IntN(2), h.leader.log
	// Others read while the leader writes, and some writes fail. Some callers go away meanwhile; what they began then goes on while
	// others are answered.
	l.before, l.appended = nil, nil
	op, leave := context.WithCancel(ctx)
	defer leave()
	switch h.rng.IntN(10) {
	case 0:
		l.before = func() error {
			l.before = nil
			return errors.Join(pageservice.ErrUnavailable, h.locate(x, space, rank, h.keys(4)))
		}
	case 1, 2:
		var wrong error
		l.before = func() error { l.before = nil; wrong = h.locate(x, space, rank, h.keys(8)); return nil }
		defer func() {
			if wrong != nil {
				panic(wrong)
			}
		}()
	}
	do := h.rng.IntN(100)
	if do >= 50 && do < 80 {
		l.flush() // these wait for others
	}
	if do < 61 && h.rng.IntN(8) == 0 {
		l.appended = leave
	}
	if int(h.clock.now().Unix())%2 == 0 && do >= 60 && do < 80 {
		do = 20
	}
	h.tell("step %d", do)
	switch {
	case do < 20: // as engines do: all ranks
		for rank := range 2 {
			got, err := h.reserve(op, x, space, rank, h.keys(1))
			if err := expected(err); err != nil {
				return err
			}
			l.flush()
			for _, w := range got {
				if err := h.confirm(op, w, false); err != nil {
					return err
				}
			}
		}
	case do < 30:
		_, err := h.reserve(op, x, space, rank, h.keys(4))
		return expected(err)
	case do < 38:
		return h.locate(x, space, rank, h.keys(8))
	case do < 42 && h.deposed != nil && h.until.After(h.clock.now()):
		if h.rng.IntN(2) == 0 {
			return h.locate(h.deposed.x, space, rank, h.keys(8))
		}
		_, err := h.reserve(ctx, h.deposed.x, space, rank, h.keys(1)) // what is present needs no write
		return expected(err)
	case do < 45:
		_, err := x.Evict(op, space, 1+h.rng.IntN(3))
		return expected(err)
	case do < 50:
		if n := len(h.writers); n > 0 {
			if w := h.writers[h.rng.IntN(n)]; w.until.After(h.clock.now()) {
				return h.write(w)
			}
		}
	case do < 58:
		if n := len(h.writers); n > 0 {
			return h.confirm(op, h.writers[h.rng.IntN(n)], h.rng.IntN(3) == 0)
		}
	case do < 61:
		_, err := x.Delete(op, space, h.keys(3))
		return expected(err)
	case do < 63:
		return expected(x.Clear(op, space))
	case do < 65:
		return expected(x.GiveUp(op, space, rank))
	case do < 69:
		return expected(x.Forget(op, space, rank))
	case do < 78:
		_, err := x.Initialize(op, space, h.rng.IntN(3), pageservice.RankOptions{NumPages: int64(4 + h.rng.IntN(2))})
		return expected(err)
	case do < 80:
		if s := x.find(space); s != nil {
			if err := s.lockAlone(ctx); err != nil {
				return err
			}
			s.shrink()
			s.unlockAlone()
		}
	case do < 86:
		h.clock.advance([]time.Duration{1, 4, 6, 11, 31, 61, 71}[h.rng.IntN(7)] * time.Second)
	case do < 88:
		l.compact = h.rng.IntN(3) * h.rng.IntN(8)
	case do < 94:
		return h.follower().log.follow(h.rng, 1+h.rng.IntN(20))
	case do < 96:
		if err := h.follower().log.snapshot(); err != nil {
			return err
		}
		if h.rng.IntN(2) == 0 {
			h.log.truncate()
			l.rewriter = nil
		}
	case do < 97:
		s := h.follower()
		s.end()
		h.start(s)
	default:
		l.before, l.appended = nil, nil
		return h.fail()
	}
	return nil
}

// follower returns a host that follows.
func (h *hosts) follower() *simHost { return h.all[(h.leader.name+1+h.rng.IntN(2))%3] }

// run runs one history.
func (h *hosts) run(steps int) (err error) {
	defer func() {
		for _, s := range h.all {
			s.end()
		}
	}()
	if err := h.promote(h.all[0]); err != nil {
		return err
	}
	for _, space := range simSpaces {
		for rank := range 2 {
			if _, err := h.leader.x.Initialize(ctx, space, rank, pageservice.RankOptions{NumPages: 4}); err != nil {
				return err
			}
		}
	}
	for range steps {
		if err := h.step(); err != nil {
			return err
		}
		if len(h.leader.log.pending) == 0 {
			if err := h.leader.x.Check(); err != nil {
				return err
			}
		}
	}
	h.leader.log.before = nil
	h.leader.log.flush()
	for _, s := range h.all {
		if s != h.leader {
			if err := s.log.follow(h.rng, h.log.len()); err != nil {
				return err
			}
		}
	}
	return nil
}

// Whatever clients and operators do to the host that leads, whichever host leads next and whenever, and however the log was cut short: hosts that
// are at the same place of the log know the same, no page has two users, and no confirmed key is lost.
func TestHostsKnowTheSame(t *testing.T) {
	seed, histories := testseed.New(t), 200
	if os.Getenv("KV3FS_SOAK") != "" {
		histories = 4000
	}
	compared := 0
	for n := range histories {
		h := newHosts(rand.New(rand.NewPCG(seed, uint64(n))))
		if err := h.run(150); err != nil {
			t.Fatalf("history %d: %v, after:\n%s", n, err, strings.Join(h.trace[max(0, len(h.trace)-60):], "\n"))
		}
		compared += len(h.log.hashes)
	}
	t.Logf("%d histories, %d states compared", histories, compared)
}
