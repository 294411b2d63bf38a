package rings

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// lane serves the rings of one priority: a submit semaphore, whose post means
// "look at the rings", and workers that wait for it. The worker that wakes does
// the work itself, so that a request costs no hand-over; when it sees more than
// it takes, it posts the semaphore for another worker.
type lane struct {
	door    *Door
	workers int

	sem       *shm.NamedSem
	ended     atomic.Bool
	lastCall  atomic.Int64 // unix nanoseconds: until when an ended lane still serves
	lookout   atomic.Bool  // some worker waits with the short bound
	lingering atomic.Bool

	mu    sync.RWMutex // held shared while rings are peeked at, so that none is unmapped
	rings []*ring
	next  atomic.Uint32 // where sweeps start, so that no ring is always last
}

const (
	// lookoutEvery bounds the wait of one idle worker while there are rings. A
	// post that arrives wakes at once; this is for posts that a stranger, who
	// can write to the semaphore like everybody, has made disappear.
	lookoutEvery = 50 * time.Millisecond
	idleWait     = time.Minute
)

func newLane(d *Door, p wire.Priority, workers int) (*lane, error) {
	sem, err := shm.CreateSem(SemPrefix + wire.NewUUID().String())
	if err != nil {
		return nil, err
	}
	return &lane{door: d, workers: workers, sem: sem}, nil
}

// SemPrefix begins the names of the submit semaphores (4.4), in /dev/shm behind
// "sem.". A daemon that was killed leaves them behind.
const SemPrefix = "hf3fs-submit-ios."

func (l *lane) add(r *ring) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rings = append(l.rings, r)
}

// remove takes r out of the sweep. When it returns nobody peeks at r any more.
func (l *lane) remove(r *ring) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.rings, r); i >= 0 {
		l.rings = slices.Delete(l.rings, i, i+1)
	}
}

// snapshot returns the rings as they are now.
func (l *lane) snapshot() []*ring {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Clone(l.rings)
}

// wake has some worker look at the rings.
func (l *lane) wake() {
	if err := shm.Guard(l.sem.Post); err != nil {
		l.mend()
	}
}

// mend restores a semaphore that a client has shrunk.
func (l *lane) mend() {
	l.door.log.Warn("a submit semaphore was damaged by a client; mended", "path", l.sem.Path())
	if err := l.sem.Mend(); err != nil {
		l.door.log.Error("cannot mend a submit semaphore; requests may be slow until restart", "path", l.sem.Path(), "err", err)
	}
}

// drainFor bounds how long an ending lane serves what clients had submitted: a
// client that never stops submitting must not keep the daemon.
const drainFor = time.Second

// stop makes the workers return when nothing is left to do.
func (l *lane) stop() {
	l.lastCall.Store(time.Now().Add(drainFor).UnixNano())
	l.ended.Store(true)
	// Each worker that wakes and ends wakes the next (work).
	l.wake()
}

func (l *lane) work() {
	batch := make([]*request, 0, quantumRequests)
	for !l.ended.Load() {
		told := false
		if err := shm.Guard(func() { told = l.sem.TakeAll() }); err != nil {
			l.mend()
		}
		if l.sweep(batch) {
			l.linger()
		} else if !told {
			l.wait()
		}
	}
	l.sweep(batch)
	l.wake()
}

// open tells whether work may still be taken.
func (l *lane) open() bool { return !l.ended.Load() || time.Now().UnixNano() < l.lastCall.Load() }

// lingerFor is how long a worker that had work looks for more before it sleeps:
// about what going to sleep and being woken costs.
const lingerFor = 20 * time.Microsecond

// linger returns when there may be work again or lingerFor has passed. One
// worker of a lane does so at a time; the others have a processor to give back.
func (l *lane) linger() {
	if !l.lingering.CompareAndSwap(false, true) {
		return
	}
	defer l.lingering.Store(false)
	for end := time.Now().Add(lingerFor); time.Now().Before(end); {
		if r, _, _ := l.find(0, 0); r != nil {
			return
		}
	}
}

func (l *lane) wait() {
	bound := idleWait
	if l.lookout.CompareAndSwap(false, true) {
		defer l.lookout.Store(false)
		l.mu.RLock()
		if len(l.rings) > 0 {
			bound = lookoutEvery
		}
		l.mu.RUnlock()
	}
	if err := shm.Guard(func() { l.sem.Wait(bound) }); err != nil {
		l.mend()
		time.Sleep(time.Millisecond) // whoever damages semaphores in a loop must not have a core for it
	}
}

// sweep serves every ring that has work, until none has; it tells whether any had.
func (l *lane) sweep(batch []*request) (worked bool) {
	start := int(l.next.Add(1) & math.MaxInt32)
	for i := 0; l.open(); {
		r, at, others := l.find(start, i)
		if r == nil {
			return worked
		}
		i = at + 1
		var more, share bool
		if batch, more, share = r.take(batch[:0]); len(batch) == 0 {
			continue
		}
		if share || others {
			l.wake()
		}
		l.door.execute(r, batch)
		worked = true
		if more {
			i = at
		}
	}
	return worked
}

// find looks for a ring with work from position i of a round that begins at
// start, and tells whether others behind it have some too.
func (l *lane) find(start, i int) (found *ring, at int, others bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for n := len(l.rings); i < n; {
		var r *ring
		err := shm.Guard(func() {
			for ; i < n; i++ {
				if r = l.rings[(start+i)%n]; r.peek() {
					return
				}
			}
			r = nil
		})
		if err != nil {
			r = l.rings[(start+i)%n] // take meets the same fault and detaches the ring
		}
		switch {
		case r == nil:
			return found, at, false
		case found != nil:
			return found, at, true
		}
		found, at = r, i
		i++
	}
	return found, at, false
}
