package ringserver

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// poller serves the rings of one priority with a pool of workers.
//
// One worker is the leader: it waits for the submit semaphore, polls the rings and
// executes what it finds, so that a request costs no hand-over between threads. The
// others are followers: they sleep until the leader hands over the lead. It does so
// before work that would keep it from polling: when requests wait for a device, or
// when there is more to copy than one processor should. A monitor takes the lead
// from a leader that is stuck unexpectedly. While the leader works, no worker waits for
// the semaphore, so that a client's post is a memory access and no system call.
type poller struct {
	server  *Server
	workers int
	shares  uint64 // a backlog is split into this many parts, so that every processor gets some
	sem     *shm.NamedSem

	leaderToken chan struct{} // full while no worker leads
	term        atomic.Int64  // of the leader; incremented when the lead is handed over or taken
	busySince   atomic.Int64  // when the leader began its current batch, unix nanoseconds; 0: it polls

	toMonitor  chan struct{} // wakes the monitor
	monitoring atomic.Bool

	busy atomic.Int32 // workers that are moving bytes
	// slow is above 0 while requests wait for a device. Then more workers than
	// processors are useful; otherwise they would only compete.
	slow atomic.Int32

	quit       chan struct{}
	ended      sync.Once    // closes quit; a leader and its predecessor may both reach it
	drainUntil atomic.Int64 // when a stopped poller stops serving, unix nanoseconds; 0: not stopped

	repairLogged atomic.Int64 // when the last repair was logged, unix seconds

	mu    sync.RWMutex // held shared while rings are peeked at, so that none is unmapped
	rings []*ring
	next  atomic.Uint32 // where the next search begins, so that no ring is always last

	semMu     sync.RWMutex // held shared while wake posts
	semClosed bool
}

const (
	// pollEvery bounds the leader's wait while there are rings. A post wakes it at
	// once. The bound covers lost posts: any process may write to the semaphore.
	pollEvery = 50 * time.Millisecond
	idleWait  = time.Minute

	// spinFor is how long a leader that had work looks for more before it sleeps:
	// about what sleeping and being woken costs.
	spinFor = 20 * time.Microsecond

	// stuckAfter is when the monitor replaces a leader: well above what a batch takes
	// to copy while other threads compete for the processor.
	stuckAfter = 5 * time.Millisecond

	// drainFor bounds how long a stopped poller serves what clients have submitted: a
	// client that never stops submitting must not keep the daemon alive.
	drainFor = time.Second
)

// SemPrefix begins the names of the submit semaphores (4.4), in /dev/shm after
// "sem.". A daemon that was killed leaves them behind.
const SemPrefix = "hf3fs-submit-ios."

func newPoller(s *Server, workers int) (*poller, error) {
	sem, err := shm.CreateSem(SemPrefix + wire.NewUUID().String())
	if err != nil {
		return nil, err
	}
	p := &poller{
		server: s, workers: workers, shares: uint64(2 * runtime.NumCPU()), sem: sem,
		leaderToken: make(chan struct{}, 1), toMonitor: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	p.leaderToken <- struct{}{}
	return p, nil
}

func (p *poller) add(r *ring) {
	p.mu.Lock()
	p.rings = append(p.rings, r)
	first := len(p.rings) == 1
	p.mu.Unlock()
	if first {
		p.wake() // without rings, the leader waits for idleWait
	}
}

// remove takes r out of the poller. Once it returns, no worker peeks at r.
func (p *poller) remove(r *ring) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.rings, r); i >= 0 {
		p.rings = slices.Delete(p.rings, i, i+1)
	}
}

// snapshot returns the rings as they are now.
func (p *poller) snapshot() []*ring {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Clone(p.rings)
}

// wake makes the leader look at the rings.
func (p *poller) wake() {
	p.semMu.RLock()
	defer p.semMu.RUnlock()
	if p.semClosed {
		return
	}
	if err := shm.Guard(p.sem.Post); err != nil {
		p.repair()
	}
}

// repair restores a semaphore that a client has shrunk.
func (p *poller) repair() {
	if now, last := time.Now().Unix(), p.repairLogged.Load(); now-last >= 60 && p.repairLogged.CompareAndSwap(last, now) {
		p.server.log.Warn("submit semaphore repaired: a client had damaged it", "path", p.sem.Path())
	}
	if err := p.sem.Repair(); err != nil {
		p.server.log.Error("cannot repair a submit semaphore; requests may be slow", "path", p.sem.Path(), "err", err)
	}
}

// stop makes the workers return when nothing is left to do.
func (p *poller) stop() {
	p.drainUntil.Store(time.Now().Add(drainFor).UnixNano())
	p.wake()
}

// close removes the semaphore. Call it while no worker uses it: before run, or after run
// has returned.
func (p *poller) close() {
	p.semMu.Lock()
	defer p.semMu.Unlock()
	p.semClosed = true // a ring's timer may still fire
	p.sem.Close(true)
}

// run starts the workers and the monitor. It returns after stop, when all of them
// have ended.
func (p *poller) run() {
	var all sync.WaitGroup
	all.Go(p.monitor)
	for range p.workers {
		all.Go(func() {
			batch := make([]*request, 0, quantumRequests)
			for {
				select {
				case <-p.leaderToken:
					p.lead(batch)
				case <-p.quit:
					return
				}
			}
		})
	}
	all.Wait()
}

// lead finds and does work until the lead is handed over or the poller has ended.
func (p *poller) lead(batch []*request) {
	mine := p.term.Load()
	var worked time.Time // when there was last work; zero: not since the last sleep
	for {
		if err := shm.Guard(func() { p.sem.TakeAll() }); err != nil {
			p.repair()
		}
		r, batch, share := p.find(batch[:0])
		switch {
		case r == nil && p.drainUntil.Load() != 0, p.overdue():
			p.ended.Do(func() { close(p.quit) })
			if r != nil {
				r.complete(p.refuse(batch))
			}
			return
		case r == nil:
			if !worked.IsZero() && time.Since(worked) < spinFor {
				continue
			}
			worked = time.Time{}
			p.wait()
		case p.slow.Load() > 0, share && int(p.busy.Load())+1 < runtime.NumCPU():
			p.handOver(mine)
			// No longer the leader, it stays with this ring as long as another worker
			// looks after the other rings.
			for len(batch) > 0 {
				p.work(r, batch)
				if len(p.leaderToken) > 0 || p.overdue() {
					return
				}
				batch, _ = r.take(batch[:0])
			}
			return
		default:
			start := time.Now().UnixNano()
			p.busySince.Store(start)
			p.alertMonitor()
			p.work(r, batch)
			p.busySince.CompareAndSwap(start, 0) // unless a successor has set it by now
			worked = time.Now()
		}
		if p.term.Load() != mine {
			p.wake() // the post that woke this worker was meant for its successor
			return
		}
	}
}

func (p *poller) work(r *ring, batch []*request) {
	busy := p.busy.Add(1)
	if invariants.Enabled {
		invariants.Check(busy > 0 && int(busy) <= p.workers, "poller: %d of %d workers are busy", busy, p.workers)
	}
	p.server.execute(r, batch)
	p.busy.Add(-1)
}

// overdue reports whether a stopped poller has drained for long enough.
func (p *poller) overdue() bool {
	last := p.drainUntil.Load()
	return last != 0 && time.Now().UnixNano() > last
}

// refuse makes ESHUTDOWN the result of requests that were taken too late.
func (p *poller) refuse(batch []*request) []*request {
	for _, q := range batch {
		q.result = -int64(errStopping)
	}
	return batch
}

// handOver ends a term: a follower becomes the leader, unless one has already.
func (p *poller) handOver(term int64) {
	if p.term.CompareAndSwap(term, term+1) {
		if invariants.Enabled {
			invariants.Check(len(p.leaderToken) == 0, "poller: two leaders at the end of term %d", term)
		}
		p.leaderToken <- struct{}{}
	}
}

// alertMonitor makes the monitor watch the leader for a while.
func (p *poller) alertMonitor() {
	if !p.monitoring.Load() && p.monitoring.CompareAndSwap(false, true) {
		p.toMonitor <- struct{}{} // does not block: the monitor sleeps and has taken the last one
	}
}

// monitor hands over the lead for a leader that is stuck in work that was expected
// to be short. It sleeps while the poller does.
func (p *poller) monitor() {
	const restAfter = 20 // ticks with an idle leader
	tick := time.NewTicker(stuckAfter)
	defer tick.Stop()
	for {
		tick.Stop()
		select {
		case <-p.toMonitor:
		case <-p.quit:
			return
		}
		tick.Reset(stuckAfter)
		for idle := 0; idle < restAfter; {
			select {
			case <-tick.C:
			case <-p.quit:
				return
			}
			term, since := p.term.Load(), p.busySince.Load()
			switch {
			case since == 0:
				idle++
			case time.Now().UnixNano()-since > int64(stuckAfter) && p.busySince.CompareAndSwap(since, 0):
				p.handOver(term)
			default:
				idle = 0
			}
			if idle == restAfter {
				p.monitoring.Store(false)
				// A leader that began just now saw monitoring as true and did not alert.
				if p.busySince.Load() != 0 && p.monitoring.CompareAndSwap(false, true) {
					idle = 0
				}
			}
		}
	}
}

// noteSlow keeps slow above 0 after a batch that waited for a device, until 64 fast
// batches have followed.
func (p *poller) noteSlow(slow bool) {
	const fastOnes = 64
	if slow {
		p.slow.Store(fastOnes)
	} else if n := p.slow.Load(); n > 0 {
		p.slow.CompareAndSwap(n, n-1)
	}
}

func (p *poller) wait() {
	bound := idleWait
	p.mu.RLock()
	if len(p.rings) > 0 {
		bound = pollEvery
	}
	p.mu.RUnlock()
	if err := shm.Guard(func() { p.sem.Wait(bound) }); err != nil {
		p.repair()
		time.Sleep(time.Millisecond) // a client that damages semaphores in a loop must not take a core
	}
}

// find takes a batch from the next ring that has one; r is nil when none has. share
// reports that enough is left, in this ring or others, for another worker.
func (p *poller) find(batch []*request) (r *ring, _ []*request, share bool) {
	start := int(p.next.Load())
	for i := 0; ; i++ {
		var others bool
		if r, i, others = p.peek(start, i); r == nil {
			return nil, batch, false
		}
		var left uint64
		if batch, left = r.take(batch); len(batch) > 0 {
			p.next.Store(uint32(start + i + 1))
			return r, batch, others || left >= sharedBytes
		}
	}
}

// sharedBytes is how much must be left before another worker is woken to copy it:
// waking costs about as much as copying 64 KiB.
const sharedBytes = 512 << 10

// peek looks for a ring that may have work, from position i of a round that begins
// at start. others reports whether a ring after it may have some, too.
func (p *poller) peek(start, i int) (found *ring, at int, others bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for n := len(p.rings); i < n; {
		var r *ring
		err := shm.Guard(func() {
			for ; i < n; i++ {
				if r = p.rings[(start+i)%n]; r.peek() {
					return
				}
			}
			r = nil
		})
		if err != nil {
			r = p.rings[(start+i)%n] // take will fault as well and detach the ring
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
