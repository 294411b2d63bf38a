package fuseserver

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/health"
)

// late answers requests with EIO that the file system under the tree has not answered in time. Nothing can end the call
// that hangs: it keeps its thread and buffers, and what it answers at last, the kernel does not want any more. What it does
// to the files at last comes after its client was told that it failed. So until then others that use the same directory or
// file get EIO at once, lest it undoes what came later.
//
// That also bounds how many hang: others are tried, since they may be on servers that work.
type late struct {
	lateOptions
	hanging atomic.Int64 // all of users

	mu    sync.Mutex
	ended bool
	nodes map[uint64]int     // how many that change something hang, by the nodes that they use
	reads map[reading]*stuck // others
	users map[uint32]*stuck  // all of a user
	files map[uint64]int     // how many hang, by file handle
	after map[uint64]func()  // releases of files
}

type lateOptions struct {
	limit  time.Duration // 0: requests wait
	health *health.Store
	answer func(unique uint64) // with EIO
	// onDisk reports whether a node is on the file system that health looks after, and not on one mounted below.
	onDisk func(node uint64) bool
	// The kernel keeps nodes only until a request is answered. hold keeps one until drop.
	hold, drop func(node uint64)
	// Rings may not use a node from keepOut until letIn: its bytes may change yet.
	keepOut, letIn func(node uint64)
}

// reading is what those calls have in common that read the same.
type reading struct {
	uid  uint32
	node uint64
}

// stuck are calls that hang: those that only read the same, or all of a user. Some may never end, though the file system works again: so one more is
// tried now and then, after pauses that double. If it ends in time, the others do not count any more.
type stuck struct {
	hanging, lost int
	tries         int
	next          time.Time // of a try
}

// full says that a call is to be refused, where so many may hang, unless it is a try.
func (s *stuck) full(most int) bool { return s != nil && s.hanging-s.lost >= most }

// rest begins the pause before the next try.
func (s *stuck) rest(limit time.Duration) {
	const mostDoublings = 9 // 43 minutes, with the default limit
	s.next = time.Now().Add(limit << min(s.tries, mostDoublings))
	s.tries++
}

const (
	mostPerNode = 4               // that only read, of a user; what they come to at last harms nobody else
	mostPerUser = 64              // of a user, while the file system answers others
	mostLost    = 4 * mostPerUser // of a user, with those that never end: each holds a thread
	// mostWhileHung is as many as it takes to see whether it is back: each of them costs its client the whole limit.
	mostWhileHung = 4
)

// use says what a request does with the tree.
type use struct {
	how  effort
	file uint64 // file handle; 0: none
	node uint64 // besides its own; 0: none

	bytes bool // it changes those of its own node
}

type effort int

const (
	reads effort = iota // it changes nothing that others could undo or miss
	changes
	steps // it changes many things, and each of them is to end within the limit
)

// timed is a request that is being answered. A nil one waits for as long as it takes.
type timed struct {
	late   *late
	unique uint64
	uid    uint32
	nodes  [2]uint64 // 0: none
	file   uint64
	how    effort
	bytes  bool

	// Guarded by late.mu.
	patient  bool // it waits for something else than the file system
	began    time.Time
	timer    *time.Timer
	tries    []*stuck
	also     []uint64 // nodes that its change uses, as became known later
	answered bool
	ended    bool
}

func newLate(o lateOptions) *late {
	return &late{lateOptions: o, nodes: map[uint64]int{}, reads: map[reading]*stuck{}, users: map[uint32]*stuck{}, files: map[uint64]int{}, after: map[uint64]func(){}}
}

// begin is called before a request uses the tree, with its node, or 0. It returns EIO if it is not to.
func (l *late) begin(h *fuse.InHeader, node uint64, u use) (*timed, fuse.Status) {
	if l.limit == 0 {
		return nil, fuse.OK
	}
	c := &timed{late: l, unique: h.Unique, uid: h.Uid, nodes: [2]uint64{node, u.node}, file: u.file, how: u.how, bytes: u.bytes, began: time.Now()}
	if l.hanging.Load() > 0 && l.refuses(c) {
		return nil, fuse.EIO
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.timer = time.AfterFunc(l.limit, c.expire)
	return c, fuse.OK
}

func (l *late) refuses(c *timed) bool {
	most := mostPerUser
	if l.health.Hangs() && (c.nodes[0] == 0 || l.onDisk(c.nodes[0])) {
		most = mostWhileHung
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, node := range c.nodes {
		if l.nodes[node] > 0 {
			return true
		}
		if s := l.reads[reading{c.uid, node}]; s.full(mostPerNode) {
			if c.how != reads || time.Now().Before(s.next) {
				return true
			}
			c.tries = append(c.tries, s)
		}
	}
	if s := l.users[c.uid]; s.full(most) {
		if most == mostWhileHung || s.hanging >= mostLost || time.Now().Before(s.next) {
			return true
		}
		c.tries = append(c.tries, s)
	}
	for _, s := range c.tries {
		s.rest(l.limit)
	}
	return false
}

// expire is called when c has taken as long as the limit.
func (c *timed) expire() {
	l := c.late
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.ended || l.ended:
		return
	case c.patient && !l.health.Hangs():
		c.timer.Reset(l.limit)
		return
	}
	if left := l.limit - time.Since(c.began); left > 0 { // a step has ended meanwhile
		c.timer.Reset(left)
		return
	}
	l.health.Doubt()
	c.answered = true
	c.count(+1)
	for _, node := range c.all() {
		l.hold(node)
	}
	l.answer(c.unique)
}

// all returns the nodes that c uses. They stay the same once it was answered.
func (c *timed) all() []uint64 {
	return slices.DeleteFunc(append(slices.Clone(c.nodes[:]), c.also...), func(node uint64) bool { return node == 0 })
}

// count counts c among the calls that hang. The caller holds late.mu.
func (c *timed) count(by int) {
	l := c.late
	l.hanging.Add(int64(by))
	countStuck(l.users, c.uid, by, mostPerUser, l.limit)
	switch {
	case !c.bytes:
	case by > 0:
		l.keepOut(c.nodes[0])
	default:
		l.letIn(c.nodes[0])
	}
	for _, node := range c.all() {
		switch {
		case c.how == reads:
			countStuck(l.reads, reading{c.uid, node}, by, mostPerNode, l.limit)
		default:
			add(l.nodes, node, by)
		}
	}
	if c.file != 0 {
		add(l.files, c.file, by)
	}
}

func countStuck[K comparable](all map[K]*stuck, k K, by, most int, limit time.Duration) {
	s := all[k]
	if s == nil {
		s = &stuck{}
		all[k] = s
	}
	s.hanging += by
	s.lost = min(s.lost, s.hanging)
	switch {
	case s.hanging == 0:
		delete(all, k)
	case by > 0 && s.full(most):
		s.rest(limit)
	}
}

func add[K comparable](counts map[K]int, k K, by int) {
	if counts[k] += by; counts[k] == 0 {
		delete(counts, k)
	}
}

// wait says that c waits for something else than the file system.
func (c *timed) wait() {
	if c == nil {
		return
	}
	c.late.mu.Lock()
	defer c.late.mu.Unlock()
	c.patient = true
}

// waited says that c waits for the file system again, and has the whole limit for that. Its error says that its client was told that it failed.
func (c *timed) waited() error {
	return c.going(func() { c.patient, c.began = false, time.Now() })
}

// step is called before each step of a request that has many, with what it uses. An error ends it.
func (c *timed) step(nodes ...uint64) error {
	return c.going(func() { c.began, c.also = time.Now(), nodes })
}

// unanswered is called before a request that is no series of steps changes something in these nodes. Its error says that its client was told that it failed.
func (c *timed) unanswered(nodes ...uint64) error {
	return c.going(func() { c.also = nodes })
}

// going calls set, unless the client was told that the request failed: then that is the error.
func (c *timed) going(set func()) error {
	if c == nil {
		return nil
	}
	c.late.mu.Lock()
	defer c.late.mu.Unlock()
	if c.answered {
		return unix.EIO
	}
	set()
	return nil
}

// end is called when the request is done, before it is answered. It reports whether it was answered already, so that the
// client has nothing of what it got. Only the first call does.
func (c *timed) end() (answered bool) {
	if c == nil {
		return false
	}
	l := c.late
	l.mu.Lock()
	first := !c.ended
	c.ended = true
	c.timer.Stop()
	if !first || !c.answered {
		if first {
			for _, s := range c.tries {
				s.lost = s.hanging
			}
		}
		l.mu.Unlock()
		return false
	}
	c.count(-1)
	var release func()
	if l.files[c.file] == 0 {
		release = l.after[c.file]
		delete(l.after, c.file)
	}
	l.mu.Unlock()
	for _, node := range c.all() {
		l.drop(node)
	}
	if release != nil {
		release()
	}
	return true
}

// release calls fn, which releases a file handle, once no call that hangs uses it: descriptors have numbers.
func (l *late) release(file uint64, fn func()) {
	l.mu.Lock()
	if l.files[file] > 0 {
		l.after[file] = fn
		fn = func() {}
	}
	l.mu.Unlock()
	fn()
}

// stop has no request answered any more.
func (l *late) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}
