package ringserver

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
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
	server        *Server
	workers       int
	shares        uint64 // a backlog is split into this many parts, so that every processor gets some
	inflightBytes int64  // what workers may move at once for one user
	submit        *submitSems
	waiter        *submitWaiter

	leaderToken chan struct{}          // full while no worker leads
	leader      atomic.Pointer[worker] // the last one
	turns       atomic.Uint64          // of leaders, see Alive
	lookedAll   atomic.Int64           // when all users were last looked at, on the server's clock

	toMonitor  chan struct{} // wakes the monitor
	monitoring atomic.Bool

	busy atomic.Int32 // workers that are moving bytes
	// slow is above 0 while requests wait for a device. Then more workers than
	// processors are useful; otherwise they would only compete.
	slow atomic.Int32

	all        sync.WaitGroup // the workers and the monitor
	quit       chan struct{}
	ended      sync.Once    // closes quit; a leader and its predecessor may both reach it
	drainUntil atomic.Int64 // when a stopped poller stops serving, unix nanoseconds; 0: not stopped

	avoid atomic.Pointer[map[userFile]struct{}] // files with too many stuck requests of a user

	mu         sync.Mutex // held for a few instructions, or as many as a user has rings
	users      map[uint32]*user
	ready      []*user // users with work, in the order of their turns
	listed     int     // rings in backlogs
	working    map[*worker]struct{}
	stuck      int              // workers that are stuck
	stuckFiles map[userFile]int // and in which files of whom
}

const (
	// pollEvery bounds the leader's wait while there are rings. A post wakes it at
	// once. The bound covers lost posts: clients can write anything into their semaphores.
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

func newPoller(s *Server, priority wire.Priority, workers int) *poller {
	p := &poller{
		server: s, workers: workers, shares: uint64(2 * runtime.NumCPU()), inflightBytes: max(inflightBytes, int64(workers)*workerBytes),
		submit: s.submit, waiter: s.submit.waiter(priority),
		leaderToken: make(chan struct{}, 1), toMonitor: make(chan struct{}, 1), quit: make(chan struct{}),
		users: map[uint32]*user{}, working: map[*worker]struct{}{}, stuckFiles: map[userFile]int{},
	}
	p.leaderToken <- struct{}{}
	return p
}

// wake makes the leader look for work.
func (p *poller) wake() { p.waiter.wake() }

// stop makes the workers return when nothing is left to do.
func (p *poller) stop() {
	p.drainUntil.Store(time.Now().Add(drainFor).UnixNano())
	p.wake()
}

// run starts the workers and the monitor. It returns after stop, when all of them
// have ended.
func (p *poller) run() {
	p.all.Go(p.monitor)
	for range p.workers {
		p.all.Go(func() { p.serve(&worker{poller: p}) })
	}
	p.all.Wait()
}

// serve is the life of a worker: until the poller ends, or another worker has replaced it.
func (p *poller) serve(w *worker) {
	w.batch = make([]*request, 0, quantumRequests)
	for !w.replaced {
		select {
		case <-p.leaderToken:
			w.lead.Store(leadIdle)
			p.leader.Store(w)
			w.leadOn()
		case <-p.quit:
			return
		}
	}
}

// leadOn finds and does work until the lead is handed over or the poller has ended.
func (w *worker) leadOn() {
	p := w.poller
	var worked int64 // when there was last work; 0: not since the last sleep
	for {
		p.turns.Add(1)
		now := p.server.clock.now()
		if !w.stillLeads(now) {
			p.wake() // its successor may not have seen what it found
			return
		}
		p.collect(w, now)
		j := p.take(w)
		switch {
		case p.overdue() || j.ring == nil && !j.more && p.drained():
			p.ended.Do(func() { close(p.quit) })
			if j.ring != nil {
				p.refuse(w, j)
			}
			return
		case j.more:
		case j.ring == nil:
			if worked != 0 && p.server.clock.now()-worked < int64(spinFor) {
				continue
			}
			worked = 0
			if w.stillLeads(leadIdle) {
				p.wait()
			}
		case p.slow.Load() > 0, j.share && int(p.busy.Load())+1 < runtime.NumCPU(), !w.stillLeads(p.server.clock.now()):
			p.handOver(w)
			w.follow(j)
			return
		default:
			p.alertMonitor()
			w.work(j)
			worked = p.server.clock.now()
		}
	}
}

// follow works while another worker leads, and as long as there is work.
func (w *worker) follow(j job) {
	p := w.poller
	for j.ring != nil || j.more {
		if j.ring != nil {
			w.work(j)
		}
		if w.replaced || len(p.leaderToken) > 0 || p.overdue() {
			return
		}
		j = p.take(w)
	}
}

func (w *worker) work(j job) {
	p := w.poller
	p.busy.Add(1)
	again := p.server.execute(w, j)
	p.busy.Add(-1)
	p.finish(w, j, again)
}

// drained reports whether a stopped poller has nothing left to do.
func (p *poller) drained() bool {
	if p.drainUntil.Load() == 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.working) == p.stuck && p.listed == 0
}

// overdue reports whether a stopped poller has drained for long enough.
func (p *poller) overdue() bool {
	last := p.drainUntil.Load()
	return last != 0 && time.Now().UnixNano() > last
}

// refuse answers a job that was taken too late with ESHUTDOWN, or leaves it to a successor.
func (p *poller) refuse(w *worker, j job) {
	leaves := j.ring.leaving()
	for _, q := range j.batch {
		if leaves {
			q.unfinished = true
		} else {
			q.result = -int64(errStopping)
		}
	}
	j.ring.complete(j.batch)
	p.finish(w, j, false)
}

// The values of worker.lead; another one is since when the leader has been busy, on the
// server's clock.
const (
	leadNone = 0  // the worker does not lead
	leadIdle = -1 // it leads and waits for posts
)

// stillLeads notes what the leader is about to do. It is false once the lead was taken.
func (w *worker) stillLeads(since int64) bool {
	before := w.lead.Load()
	return before != leadNone && w.lead.CompareAndSwap(before, since)
}

// handOver makes a follower the leader, if w still leads.
func (p *poller) handOver(w *worker) {
	if w.lead.Swap(leadNone) != leadNone {
		p.vacant()
	}
}

// takeLead does the same for a leader that has been busy for longer than limit.
func (p *poller) takeLead(w *worker, limit time.Duration) bool {
	since := w.lead.Load()
	if since <= 0 || p.server.clock.now()-since <= int64(limit) || !w.lead.CompareAndSwap(since, leadNone) {
		return false
	}
	p.noteSlow(true) // the next leader hands over before it works
	p.vacant()
	return true
}

// vacant lets a follower take the lead.
func (p *poller) vacant() {
	if invariants.Enabled {
		invariants.Check(len(p.leaderToken) == 0, "poller: two leaders")
	}
	p.leaderToken <- struct{}{}
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
			w := p.leader.Load()
			switch {
			case w.lead.Load() <= 0:
				idle++
			case !p.takeLead(w, stuckAfter):
				idle = 0
			}
			if idle == restAfter {
				p.monitoring.Store(false)
				// A leader that began just now saw monitoring as true and did not alert.
				if p.leader.Load().lead.Load() > 0 && p.monitoring.CompareAndSwap(false, true) {
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
	p.mu.Lock()
	if len(p.users) > 0 {
		bound = pollEvery
	}
	p.mu.Unlock()
	if p.drainUntil.Load() != 0 {
		bound = time.Millisecond
	}
	p.waiter.wait(bound)
}

// sharedBytes is how much must be left before another worker is woken to copy it:
// waking costs about as much as copying 64 KiB.
const sharedBytes = 512 << 10
