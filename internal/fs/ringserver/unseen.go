package ringserver

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// unseen ends the registrations of processes in PID namespaces that the daemon cannot see,
// in a container without the host's PID namespace for instance. Nobody says when such a
// process exits, and it cannot be told from others of its user. But an exited process has no
// memory mapped: a registration ends when nobody but the daemon has had its object open or
// mapped at two looks in a row. Looks follow the release of a handle that such a process
// opened on the registration directory, since a process that exits releases its own, and
// come every lookPeriod.
type unseen struct {
	log  *slog.Logger
	reap func(*entry)
	wake chan struct{} // capacity 1: a handle has been released
	once sync.Once

	mu      sync.Mutex
	entries map[*entry]bool // whether the last look found it unused
}

const (
	firstUnseenLook = 5 * time.Millisecond
	lookPeriod      = 10 * time.Second
)

func newUnseen(log *slog.Logger, reap func(*entry)) *unseen {
	return &unseen{log: log, reap: reap, wake: make(chan struct{}, 1), entries: map[*entry]bool{}}
}

// add begins to look after e.
func (u *unseen) add(e *entry) {
	u.once.Do(func() {
		u.log.Warn("a client with rings is in a PID namespace that the daemon cannot see: its supplementary groups count only for files that it has open, and its registrations end some seconds late if it is killed; run the daemon in the host's PID namespace (Kubernetes: hostPID: true; docker: --pid=host)", "uid", e.UID)
	})
	u.watch(e)
}

// inherit is add for what a process has left that exited while there was no daemon. Perhaps nobody has it any more.
func (u *unseen) inherit(e *entry) {
	u.watch(e)
	u.lookSoon()
}

func (u *unseen) watch(e *entry) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.entries[e] = false
}

// remove ends that.
func (u *unseen) remove(e *entry) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.entries, e)
}

// lookSoon makes run look, more often for a while.
func (u *unseen) lookSoon() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// run looks until ctx ends.
func (u *unseen) run(ctx context.Context) {
	pause := lookPeriod
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
			pause = firstUnseenLook
		case <-timer.C:
			u.look()
			pause = min(2*pause, lookPeriod)
		}
		timer.Reset(pause)
	}
}

// look ends the registrations that it finds unused for the second time.
func (u *unseen) look() {
	u.mu.Lock()
	all := make([]*entry, 0, len(u.entries))
	for e := range u.entries {
		all = append(all, e)
	}
	u.mu.Unlock()
	for _, e := range all {
		unused := e.unused() // system calls: not under the lock
		u.mu.Lock()
		before, known := u.entries[e]
		if known {
			u.entries[e] = unused
		}
		u.mu.Unlock()
		if known && before && unused {
			u.reap(e)
		}
	}
}

// unused reports whether nobody but the daemon has the entry's object open or mapped.
func (e *entry) unused() bool {
	if e.iov != nil {
		v := e.iov.acquire()
		if v == nil {
			return false
		}
		defer v.release()
		return v.m.Alone()
	}
	r := e.ring
	r.mu.Lock()
	if r.closed {
		r.unlock()
		return false
	}
	r.refs++
	r.unlock()
	alone := r.m.Alone()
	r.mu.Lock()
	r.unref()
	r.unlock()
	return alone
}
