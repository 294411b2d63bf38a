package fuseserver

import "sync"

// closersPerUser is how many closes of one user's files may hang before the others of that
// user wait for them.
const closersPerUser = 4

// closing closes what clients have released. A close may hang like any call on a file. It
// must not keep the kernel waiting, which sends a bounded number of releases at a time, or
// take a thread for each file. So each user has a queue, with a few goroutines while it is
// not empty.
type closing struct {
	mu      sync.Mutex
	users   map[uint32]*closingQueue // those whose files are being closed
	closers sync.WaitGroup
}

type closingQueue struct {
	waiting []func()
	closers int
}

func newClosing() *closing { return &closing{users: make(map[uint32]*closingQueue)} }

// add has fn called soon, in a goroutine, on behalf of a user.
func (c *closing) add(uid uint32, fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.users[uid]
	if q == nil {
		q = &closingQueue{}
		c.users[uid] = q
	}
	q.waiting = append(q.waiting, fn)
	if q.closers < closersPerUser {
		q.closers++
		c.closers.Go(func() { c.work(uid, q) })
	}
}

func (c *closing) work(uid uint32, q *closingQueue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(q.waiting) > 0 {
		fn := q.waiting[0]
		q.waiting = q.waiting[1:]
		c.mu.Unlock()
		fn()
		c.mu.Lock()
	}
	if q.closers--; q.closers == 0 {
		delete(c.users, uid)
	}
}

// wait returns when everything is closed. Call it after the last add.
func (c *closing) wait() { c.closers.Wait() }
