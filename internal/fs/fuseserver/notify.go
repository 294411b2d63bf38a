package fuseserver

import (
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// notifyWait is how long an ioctl waits for the kernel to drop names before it answers.
// The kernel needs the directory's lock for that, which another request may hold.
const notifyWait = 500 * time.Millisecond

// mostOffered is how many messages may wait for a directory's lock if they may be lost.
const mostOffered = pruneBatch

// notifier tells the kernel that directory entries changed without its knowledge. The
// kernel takes the directory's lock for it: code that answers a request which holds
// that lock must not wait, and no directory may wait for the lock of another. So each
// directory has a queue of its own, with a worker while the queue is not empty.
type notifier struct {
	send func(parent uint64, name string)

	mu      sync.Mutex
	queues  map[uint64][]notification // by directory; a key means that its worker runs
	stopped bool
	workers sync.WaitGroup
}

type notification struct {
	name string
	done chan struct{}
}

func newNotifier(send func(parent uint64, name string)) *notifier {
	return &notifier{send: send, queues: make(map[uint64][]notification)}
}

// entry queues the message that an entry changed and returns a channel that is
// closed when the kernel has received it.
func (n *notifier) entry(parent uint64, name string) <-chan struct{} {
	done := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped {
		close(done)
		return done
	}
	queue, running := n.queues[parent]
	n.queues[parent] = append(queue, notification{name, done})
	if !running {
		n.workers.Go(func() { n.work(parent) })
	}
	return done
}

// offer is entry for a message that may be lost. It is where many wait: a request that hangs
// may hold the directory's lock.
func (n *notifier) offer(parent uint64, name string) {
	n.mu.Lock()
	many := len(n.queues[parent]) >= mostOffered
	n.mu.Unlock()
	if !many {
		n.entry(parent, name)
	}
}

// entryAndWait is entry for requests that hold no lock: it waits, at most notifyWait.
func (n *notifier) entryAndWait(parent uint64, name string) {
	limit := time.NewTimer(notifyWait)
	defer limit.Stop()
	select {
	case <-n.entry(parent, name):
	case <-limit.C:
	}
}

// work sends what is queued for a directory.
func (n *notifier) work(parent uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, running := n.queues[parent]
	invariants.Check(running, "a worker runs for directory %d, which has no queue", parent)
	for len(n.queues[parent]) > 0 {
		next := n.queues[parent][0]
		n.queues[parent] = n.queues[parent][1:]
		if !n.stopped {
			n.mu.Unlock()
			n.send(parent, next.name)
			n.mu.Lock()
		}
		close(next.done)
	}
	delete(n.queues, parent)
}

// stop drops everything that is queued or will be.
func (n *notifier) stop() {
	n.mu.Lock()
	n.stopped = true
	n.mu.Unlock()
}

// wait returns when no worker is left. Call it after stop.
func (n *notifier) wait() { n.workers.Wait() }
