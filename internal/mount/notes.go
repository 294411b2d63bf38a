package mount

import (
	"sync"
	"time"
)

// How long an ioctl waits for the kernel to drop names before it answers. The
// kernel needs the directory's lock for that, which some other request may hold.
const noteWait = 500 * time.Millisecond

// notes tells the kernel that directory entries changed behind its back. It is
// a queue with one worker, because the kernel takes the directory's lock for it:
// whoever answers a request that holds that lock must not wait for it.
type notes struct {
	send func(parent uint64, name string)

	mu      sync.Mutex
	wake    *sync.Cond
	queue   []note
	stopped bool
}

type note struct {
	parent uint64
	name   string
	done   chan struct{}
}

func newNotes(send func(parent uint64, name string)) *notes {
	n := &notes{send: send}
	n.wake = sync.NewCond(&n.mu)
	return n
}

// entry queues the message that an entry changed and returns a channel that is
// closed when the kernel has it.
func (n *notes) entry(parent uint64, name string) <-chan struct{} {
	done := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped {
		close(done)
		return done
	}
	n.queue = append(n.queue, note{parent, name, done})
	n.wake.Signal()
	return done
}

// entryNow is entry for those who hold no lock: it waits, within bounds.
func (n *notes) entryNow(parent uint64, name string) {
	limit := time.NewTimer(noteWait)
	defer limit.Stop()
	select {
	case <-n.entry(parent, name):
	case <-limit.C:
	}
}

// run sends until stop.
func (n *notes) run() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		for len(n.queue) == 0 && !n.stopped {
			n.wake.Wait()
		}
		if n.stopped {
			for _, left := range n.queue {
				close(left.done)
			}
			n.queue = nil
			return
		}
		next := n.queue[0]
		n.queue = n.queue[1:]
		n.mu.Unlock()
		n.send(next.parent, next.name)
		close(next.done)
		n.mu.Lock()
	}
}

func (n *notes) stop() {
	n.mu.Lock()
	n.stopped = true
	n.wake.Broadcast()
	n.mu.Unlock()
}
