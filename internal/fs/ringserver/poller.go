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

// poller serves the rings of one priority.
//
// One of its workers leads: it waits for the submit semaphore, looks at the
// rings and does the work it finds itself, so that a request costs no
// hand-over. The others follow: they are parked until the leader passes the
// baton, which it does before work that would keep it from leading: when
// requests wait for a device, or when there is more to copy than one processor
// should. A monitor takes the baton from a leader who is stuck unexpectedly.
// While the leader works nobody waits for the semaphore, so that a client's post
// is a memory access and no system call.
type poller struct {
	server  *Server
	workers int
	shares  uint64 // in how many parts a backlog is copied, so that all processors have some
	sem     *shm.NamedSem

	leaderToken chan struct{} // holds the baton while nobody leads
	term        atomic.Int64  // the leader's; whoever passes or takes the baton counts it up
	busySince   atomic.Int64  // when the leader began what it does with the baton in hand, in ns; 0: it leads

	toMonitor  chan struct{} // wakes the monitor
	monitoring atomic.Bool

	busy atomic.Int32 // workers that move bytes
	// slow is above 0 while requests wait for a device: then more workers than
	// processors are worth having. Otherwise they would only be in each other's
	// way.
	slow atomic.Int32

	quit       chan struct{}
	ended      sync.Once    // closes quit; a leader and its predecessor may both come to it
	drainUntil atomic.Int64 // unix nanoseconds: until when an ended poller still serves; 0: it has not ended

	repairLogged atomic.Int64 // unix seconds of the last such message

	mu    sync.RWMutex // held shared while rings are peeked at, so that none is unmapped
	rings []*ring
	next  atomic.Uint32 // where the next look begins, so that no ring is always last
}

const (
	// pollEvery bounds the leader's wait while there are rings. A post that
	// arrives wakes it at once; this is for posts that a stranger, who can write
	// to the semaphore like everybody, has made disappear.
	pollEvery = 50 * time.Millisecond
	idleWait  = time.Minute

	// spinFor is how long a leader that had work looks for more before it
	// sleeps: about what going to sleep and being woken costs.
	spinFor = 20 * time.Microsecond

	// stuckAfter is when the monitor finds a successor for a leader: well above
	// what a batch takes to copy while other threads want the processor, too.
	stuckAfter = 5 * time.Millisecond

	// drainFor bounds how long an ending poller serves what clients had submitted:
	// a client that never stops submitting must not keep the daemon.
	drainFor = time.Second
)

// SemPrefix begins the names of the submit semaphores (4.4), in /dev/shm behind
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
		p.wake() // the leader may be asleep for as long as nothing could come
	}
}

// remove takes r out of the poller. When it returns nobody peeks at r any more.
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

// wake has the leader look at the rings.
func (p *poller) wake() {
	if err := shm.Guard(p.sem.Post); err != nil {
		p.repair()
	}
}

// mend restores a semaphore that a client has shrunk.
func (p *poller) repair() {
	if now, last := time.Now().Unix(), p.repairLogged.Load(); now-last >= 60 && p.repairLogged.CompareAndSwap(last, now) {
		p.server.log.Warn("a submit semaphore was damaged by a client; repaired", "path", p.sem.Path())
	}
	if err := p.sem.Repair(); err != nil {
		p.server.log.Error("cannot repair a submit semaphore; requests may be slow until restart", "path", p.sem.Path(), "err", err)
	}
}

// stop makes the workers return when nothing is left to do.
func (p *poller) stop() {
	p.drainUntil.Store(time.Now().Add(drainFor).UnixNano())
	p.wake()
}

// run is the poller's life: it returns when stop was called and all workers are done.
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

// lead finds and does work until it has passed the baton or the poller has ended.
func (p *poller) lead(batch []*request) {
	mine := p.term.Load()
	var worked time.Time // when there was work last; zero: not since the last sleep
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
			// Without the baton it stays with this ring, as long as somebody else
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
			p.busySince.CompareAndSwap(start, 0) // unless it is a successor's by now
			worked = time.Now()
		}
		if p.term.Load() != mine {
			p.wake() // what woke this worker was for its successor
			return
		}
	}
}

func (p *poller) work(r *ring, batch []*request) {
	p.busy.Add(1)
	p.server.execute(r, batch)
	p.busy.Add(-1)
}

// overdue tells whether an ended poller has drained for long enough.
func (p *poller) overdue() bool {
	last := p.drainUntil.Load()
	return last != 0 && time.Now().UnixNano() > last
}

// refuse answers what was taken too late.
func (p *poller) refuse(batch []*request) []*request {
	for _, q := range batch {
		q.result = -int64(errStopping)
	}
	return batch
}

// pass gives the baton of a term to a follower, unless it was taken already.
func (p *poller) handOver(term int64) {
	if p.term.CompareAndSwap(term, term+1) {
		p.leaderToken <- struct{}{}
	}
}

// alert has the monitor look at the leader for a while.
func (p *poller) alertMonitor() {
	if !p.monitoring.Load() && p.monitoring.CompareAndSwap(false, true) {
		p.toMonitor <- struct{}{} // it is parked: there is room
	}
}

// watch is the monitor: it passes the baton for a leader who is stuck in work
// that was expected to be short. It sleeps while the poller does.
func (p *poller) monitor() {
	const restAfter = 20 // looks at an idle leader
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
				// A leader that began just now saw the monitor still awake.
				if p.busySince.Load() != 0 && p.monitoring.CompareAndSwap(false, true) {
					idle = 0
				}
			}
		}
	}
}

// noteSlow remembers a batch that waited for a device over the next fast ones.
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
		time.Sleep(time.Millisecond) // whoever damages semaphores in a loop must not have a core for it
	}
}

// find takes a batch from the next ring that has one to give; nil when none
// has. share says that enough is left, there or elsewhere, for another worker.
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

// sharedBytes is how much must be left over before another worker is woken to
// copy it: waking costs about as much as copying 64 KiB.
const sharedBytes = 512 << 10

// peek looks for a ring that may have work, from position i of a round that
// begins at start, and tells whether others behind it may have some too.
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
			r = p.rings[(start+i)%n] // take meets the same fault and detaches the ring
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
