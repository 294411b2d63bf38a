package ringserver

import (
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/integrity"
)

// A worker that is in one request for stuckFor, or waits for room, counts as stuck, and another one takes its
// place, so that as many as ever are free for others. It ends when its request does.
//
// The bounds below say how many may be stuck. Beyond them, requests of the same ring or
// user, or of that user for the same file, wait for one to end, or for their deadline, and
// take no worker. Other users' requests for the file go on: a request may be stuck because
// of its own user's memory.
const (
	stuckFor = 50 * time.Millisecond

	mostStuck        = 1024 // in one poller
	mostStuckPerFile = 32
	mostStuckPerRing = 64
	mostStuckPart    = 4 // a user has at most a quarter of what is left of mostStuck
)

// userFile is a file as one user reads and writes it.
type userFile struct {
	uid uint32
	ino uint64
}

// worker is one thread of a poller.
type worker struct {
	poller *poller
	lead   atomic.Int64 // leadNone, leadIdle, or since when it is busy as the leader
	batch  []*request
	looks  []*ring
	posted []uint32
	check  integrity.Read // of the read in progress
	sums   integrity.Write

	step atomic.Int64  // incremented with each request and job
	file atomic.Uint64 // inode number of the current request

	// Guarded by poller.mu.
	job       job
	seenStep  int64 // as of the last watch
	seenAt    int64 // when step was first seen with that value
	stuck     bool
	stuckFile userFile
	// batchWaits says that it was stuck from the start, and that the rest of its batch is
	// still to be given to others.
	batchWaits bool
	replaced   bool // another worker has taken its place
}

// beginRequest records which file the worker is about to use.
func (w *worker) beginRequest(file uint64) {
	w.file.Store(file)
	w.step.Add(1)
}

// begin records that w works on j. The caller holds poller.mu.
func (w *worker) begin(j job) {
	w.step.Add(1)
	w.job = j
	w.poller.working[w] = struct{}{}
}

// end undoes begin and, if need be, markStuck. The caller holds poller.mu.
func (w *worker) end(u *user, j job) {
	p := w.poller
	delete(p.working, w)
	w.job = job{}
	if !w.stuck {
		u.bytes -= j.bytes
		return
	}
	w.stuck, w.batchWaits = false, false
	p.stuck--
	u.stuck--
	j.ring.stuck--
	if p.stuckFiles[w.stuckFile]--; p.stuckFiles[w.stuckFile] == 0 {
		delete(p.stuckFiles, w.stuckFile)
	}
	p.noteStuckFiles()
	p.relist(u) // they may have waited for this
}

// relist lists the rings of u that have queued requests.
func (p *poller) relist(u *user) {
	for _, r := range u.rings {
		if r.backlog.Load() {
			p.listLocked(r)
		}
	}
}

// watch finds the workers that have got stuck, replaces them and returns their rings.
func (p *poller) watch(now int64) (rings []*ring) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.working {
		if step := w.step.Load(); step != w.seenStep {
			w.seenStep, w.seenAt = step, now
			continue
		}
		if now-w.seenAt < int64(stuckFor) || w.stuck && !w.batchWaits {
			continue
		}
		if !w.stuck {
			p.markStuck(w)
		}
		w.batchWaits = false
		rings = append(rings, w.job.ring)
	}
	return rings
}

func (p *poller) markStuck(w *worker) {
	r := w.job.ring
	w.stuck, w.stuckFile = true, userFile{r.cred.UID, w.file.Load()}
	p.stuck++
	r.user.stuck++
	r.user.bytes -= w.job.bytes
	r.stuck++
	p.stuckFiles[w.stuckFile]++
	p.noteStuckFiles()
	p.handOver(w)      // unless it has been taken from it already
	r.slow.Store(true) // so that the next ones are taken one by one
	if p.stuck <= mostStuck {
		w.replaced = true
		p.all.Go(func() { p.serve(&worker{poller: p}) })
	}
	p.pushLocked(r.user)
}

// mostStuckOf returns how many workers may be stuck in requests of one user.
func (p *poller) mostStuckOf() int { return max((mostStuck-p.stuck)/mostStuckPart, 1) }

// noteStuckFiles publishes the files whose requests must wait.
func (p *poller) noteStuckFiles() {
	var full map[userFile]struct{}
	for file, n := range p.stuckFiles {
		if n >= mostStuckPerFile {
			if full == nil {
				full = map[userFile]struct{}{}
			}
			full[file] = struct{}{}
		}
	}
	p.avoid.Store(&full)
}
