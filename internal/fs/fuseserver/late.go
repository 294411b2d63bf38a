package fuseserver

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

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
	nodes map[uint64]int    // how many that change something hang, by the nodes that they use
	reads map[reading]int   // how many others
	users map[uint32]int    // how many hang, by user
	files map[uint64]int    // how many hang, by file handle
	after map[uint64]func() // releases of files
}

type lateOptions struct {
	limit  time.Duration // 0: requests wait
	health *health.Store
	answer func(unique uint64) // with EIO
	// onDisk reports whether a node is on the file system that health looks after, and not on one mounted below.
	onDisk func(node uint64) bool
	// The kernel keeps nodes only until a request is answered. hold keeps one until drop.
	hold, drop func(node uint64)
}

// reading is what those calls have in common that read the same.
type reading struct {
	uid  uint32
	node uint64
}

const (
	mostPerNode = 4  // that only read, of a user; what they come to at last harms nobody else
	mostPerUser = 64 // of a user, while the file system answers others
	// mostWhileHung is as many as it takes to see whether it is back: each of them costs its client the whole limit.
	mostWhileHung = 4
)

// use says what a request does with the tree.
type use struct {
	how  effort
	file uint64 // file handle; 0: none
	node uint64 // besides its own; 0: none
}

type effort int

const (
	smallRead effort = iota
	smallChange
	long // it may rightly take longer than the limit, and is given up only if the file system hangs
)

// timed is a request that is being answered. A nil one waits for as long as it takes.
type timed struct {
	late   *late
	unique uint64
	uid    uint32
	nodes  [2]uint64 // 0: none
	file   uint64
	reads  bool // it changes nothing

	// Guarded by late.mu.
	patient  bool
	timer    *time.Timer
	answered bool
	ended    bool
}

func newLate(o lateOptions) *late {
	return &late{lateOptions: o, nodes: map[uint64]int{}, reads: map[reading]int{}, users: map[uint32]int{}, files: map[uint64]int{}, after: map[uint64]func(){}}
}

// begin is called before a request uses the tree, with its node, or 0. It returns EIO if it is not to.
func (l *late) begin(h *fuse.InHeader, node uint64, u use) (*timed, fuse.Status) {
	if l.limit == 0 {
		return nil, fuse.OK
	}
	c := &timed{late: l, unique: h.Unique, uid: h.Uid, nodes: [2]uint64{node, u.node}, file: u.file, reads: u.how == smallRead, patient: u.how == long}
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
		if l.nodes[node] > 0 || l.reads[reading{c.uid, node}] >= mostPerNode {
			return true
		}
	}
	return l.users[c.uid] >= most
}

// expire is called when c has taken as long as the limit.
func (c *timed) expire() {
	l := c.late
	l.health.Doubt()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.ended || l.ended:
		return
	case c.patient && !l.health.Hangs():
		c.timer.Reset(l.limit)
		return
	}
	c.answered = true
	c.count(+1)
	for _, node := range c.nodes {
		if node != 0 {
			l.hold(node)
		}
	}
	l.answer(c.unique)
}

// count counts c among the calls that hang. The caller holds late.mu.
func (c *timed) count(by int) {
	l := c.late
	l.hanging.Add(int64(by))
	add(l.users, c.uid, by)
	for _, node := range c.nodes {
		switch {
		case node == 0:
		case c.reads:
			add(l.reads, reading{c.uid, node}, by)
		default:
			add(l.nodes, node, by)
		}
	}
	if c.file != 0 {
		add(l.files, c.file, by)
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
	for _, node := range c.nodes {
		if node != 0 {
			l.drop(node)
		}
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
