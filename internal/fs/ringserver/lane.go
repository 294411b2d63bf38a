package ringserver

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// lane serves the rings of one priority.
//
// One of its workers leads: it waits for the submit semaphore, looks at the
// rings and does the work it finds itself, so that a request costs no
// hand-over. The others follow: they are parked until the leader passes the
// baton, which it does before work that would keep it from leading: when
// requests wait for a device, or when there is more to copy than one processor
// should. A watchman takes the baton from a leader who is stuck unexpectedly.
// While the leader works nobody waits for the semaphore, so that a client's post
// is a memory access and no system call.
type lane struct {
	door    *Door
	workers int
	shares  uint64 // in how many parts a backlog is copied, so that all processors have some
	sem     *shm.NamedSem

	baton  chan struct{} // holds the baton while nobody leads
	tenure atomic.Int64  // the leader's; whoever passes or takes the baton counts it up
	since  atomic.Int64  // when the leader began what it does with the baton in hand, in ns; 0: it leads

	active   chan struct{} // wakes the watchman
	watching atomic.Bool

	busy atomic.Int32 // workers that move bytes
	// slow is above 0 while requests wait for a device: then more workers than
	// processors are worth having. Otherwise they would only be in each other's
	// way.
	slow atomic.Int32

	quit     chan struct{}
	ended    sync.Once    // closes quit; a leader and its predecessor may both come to it
	lastCall atomic.Int64 // unix nanoseconds: until when an ended lane still serves; 0: it has not ended

	mended atomic.Int64 // unix seconds of the last such message

	mu    sync.RWMutex // held shared while rings are peeked at, so that none is unmapped
	rings []*ring
	next  atomic.Uint32 // where the next look begins, so that no ring is always last
}

const (
	// lookoutEvery bounds the leader's wait while there are rings. A post that
	// arrives wakes it at once; this is for posts that a stranger, who can write
	// to the semaphore like everybody, has made disappear.
	lookoutEvery = 50 * time.Millisecond
	idleWait     = time.Minute

	// lingerFor is how long a leader that had work looks for more before it
	// sleeps: about what going to sleep and being woken costs.
	lingerFor = 20 * time.Microsecond

	// stuckAfter is when the watchman finds a successor for a leader: well above
	// what a batch takes to copy while other threads want the processor, too.
	stuckAfter = 5 * time.Millisecond

	// drainFor bounds how long an ending lane serves what clients had submitted:
	// a client that never stops submitting must not keep the daemon.
	drainFor = time.Second
)

// SemPrefix begins the names of the submit semaphores (4.4), in /dev/shm behind
// "sem.". A daemon that was killed leaves them behind.
const SemPrefix = "hf3fs-submit-ios."

func newLane(d *Door, workers int) (*lane, error) {
	sem, err := shm.CreateSem(SemPrefix + wire.NewUUID().String())
	if err != nil {
		return nil, err
	}
	l := &lane{
		door: d, workers: workers, shares: uint64(2 * runtime.NumCPU()), sem: sem,
		baton: make(chan struct{}, 1), active: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	l.baton <- struct{}{}
	return l, nil
}

func (l *lane) add(r *ring) {
	l.mu.Lock()
	l.rings = append(l.rings, r)
	first := len(l.rings) == 1
	l.mu.Unlock()
	if first {
		l.wake() // the leader may be asleep for as long as nothing could come
	}
}

// remove takes r out of the lane. When it returns nobody peeks at r any more.
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

// wake has the leader look at the rings.
func (l *lane) wake() {
	if err := shm.Guard(l.sem.Post); err != nil {
		l.mend()
	}
}

// mend restores a semaphore that a client has shrunk.
func (l *lane) mend() {
	if now, last := time.Now().Unix(), l.mended.Load(); now-last >= 60 && l.mended.CompareAndSwap(last, now) {
		l.door.log.Warn("a submit semaphore was damaged by a client; mended", "path", l.sem.Path())
	}
	if err := l.sem.Mend(); err != nil {
		l.door.log.Error("cannot mend a submit semaphore; requests may be slow until restart", "path", l.sem.Path(), "err", err)
	}
}

// stop makes the workers return when nothing is left to do.
func (l *lane) stop() {
	l.lastCall.Store(time.Now().Add(drainFor).UnixNano())
	l.wake()
}

// run is the lane's life: it returns when stop was called and all workers are done.
func (l *lane) run() {
	var all sync.WaitGroup
	all.Go(l.watch)
	for range l.workers {
		all.Go(func() {
			batch := make([]*request, 0, quantumRequests)
			for {
				select {
				case <-l.baton:
					l.lead(batch)
				case <-l.quit:
					return
				}
			}
		})
	}
	all.Wait()
}

// lead finds and does work until it has passed the baton or the lane has ended.
func (l *lane) lead(batch []*request) {
	mine := l.tenure.Load()
	var worked time.Time // when there was work last; zero: not since the last sleep
	for {
		if err := shm.Guard(func() { l.sem.TakeAll() }); err != nil {
			l.mend()
		}
		r, batch, share := l.find(batch[:0])
		switch {
		case r == nil && l.lastCall.Load() != 0, l.overdue():
			l.ended.Do(func() { close(l.quit) })
			if r != nil {
				r.complete(l.refuse(batch))
			}
			return
		case r == nil:
			if !worked.IsZero() && time.Since(worked) < lingerFor {
				continue
			}
			worked = time.Time{}
			l.wait()
		case l.slow.Load() > 0, share && int(l.busy.Load())+1 < runtime.NumCPU():
			l.pass(mine)
			// Without the baton it stays with this ring, as long as somebody else
			// looks after the other rings.
			for len(batch) > 0 {
				l.work(r, batch)
				if len(l.baton) > 0 || l.overdue() {
					return
				}
				batch, _ = r.take(batch[:0])
			}
			return
		default:
			start := time.Now().UnixNano()
			l.since.Store(start)
			l.alert()
			l.work(r, batch)
			l.since.CompareAndSwap(start, 0) // unless it is a successor's by now
			worked = time.Now()
		}
		if l.tenure.Load() != mine {
			l.wake() // what woke this worker was for its successor
			return
		}
	}
}

func (l *lane) work(r *ring, batch []*request) {
	l.busy.Add(1)
	l.door.execute(r, batch)
	l.busy.Add(-1)
}

// overdue tells whether an ended lane has drained for long enough.
func (l *lane) overdue() bool {
	last := l.lastCall.Load()
	return last != 0 && time.Now().UnixNano() > last
}

// refuse answers what was taken too late.
func (l *lane) refuse(batch []*request) []*request {
	for _, q := range batch {
		q.result = -int64(errStopping)
	}
	return batch
}

// pass gives the baton of a tenure to a follower, unless it was taken already.
func (l *lane) pass(tenure int64) {
	if l.tenure.CompareAndSwap(tenure, tenure+1) {
		l.baton <- struct{}{}
	}
}

// alert has the watchman look at the leader for a while.
func (l *lane) alert() {
	if !l.watching.Load() && l.watching.CompareAndSwap(false, true) {
		l.active <- struct{}{} // it is parked: there is room
	}
}

// watch is the watchman: it passes the baton for a leader who is stuck in work
// that was expected to be short. It sleeps while the lane does.
func (l *lane) watch() {
	const restAfter = 20 // looks at an idle leader
	tick := time.NewTicker(stuckAfter)
	defer tick.Stop()
	for {
		tick.Stop()
		select {
		case <-l.active:
		case <-l.quit:
			return
		}
		tick.Reset(stuckAfter)
		for idle := 0; idle < restAfter; {
			select {
			case <-tick.C:
			case <-l.quit:
				return
			}
			tenure, since := l.tenure.Load(), l.since.Load()
			switch {
			case since == 0:
				idle++
			case time.Now().UnixNano()-since > int64(stuckAfter) && l.since.CompareAndSwap(since, 0):
				l.pass(tenure)
			default:
				idle = 0
			}
			if idle == restAfter {
				l.watching.Store(false)
				// A leader that began just now saw the watchman still awake.
				if l.since.Load() != 0 && l.watching.CompareAndSwap(false, true) {
					idle = 0
				}
			}
		}
	}
}

// noteSlow remembers a batch that waited for a device over the next fast ones.
func (l *lane) noteSlow(slow bool) {
	const fastOnes = 64
	if slow {
		l.slow.Store(fastOnes)
	} else if n := l.slow.Load(); n > 0 {
		l.slow.CompareAndSwap(n, n-1)
	}
}

func (l *lane) wait() {
	bound := idleWait
	l.mu.RLock()
	if len(l.rings) > 0 {
		bound = lookoutEvery
	}
	l.mu.RUnlock()
	if err := shm.Guard(func() { l.sem.Wait(bound) }); err != nil {
		l.mend()
		time.Sleep(time.Millisecond) // whoever damages semaphores in a loop must not have a core for it
	}
}

// find takes a batch from the next ring that has one to give; nil when none
// has. share says that enough is left, there or elsewhere, for another worker.
func (l *lane) find(batch []*request) (r *ring, _ []*request, share bool) {
	start := int(l.next.Load())
	for i := 0; ; i++ {
		var others bool
		if r, i, others = l.peek(start, i); r == nil {
			return nil, batch, false
		}
		var left uint64
		if batch, left = r.take(batch); len(batch) > 0 {
			l.next.Store(uint32(start + i + 1))
			return r, batch, others || left >= sharedBytes
		}
	}
}

// sharedBytes is how much must be left over before another worker is woken to
// copy it: waking costs about as much as copying 64 KiB.
const sharedBytes = 512 << 10

// peek looks for a ring that may have work, from position i of a round that
// begins at start, and tells whether others behind it may have some too.
func (l *lane) peek(start, i int) (found *ring, at int, others bool) {
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
