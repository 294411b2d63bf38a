package ringserver

import "sync"

// unmapper ends mappings for workers: a second for every 64 GiB of touched pages is too long
// for a worker that others wait for, or that has a ring locked.
type unmapper struct {
	mu      sync.Mutex
	waiting []mapped
	running bool
	ended   sync.WaitGroup
}

// unmapAtOnceBytes is how large a mapping a worker ends itself: in a few milliseconds at most.
const unmapAtOnceBytes = 64 << 20

// unmap ends m, soon.
func (u *unmapper) unmap(m mapped) {
	if m.Len() <= unmapAtOnceBytes {
		m.Unmap()
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting = append(u.waiting, m)
	if !u.running {
		u.running = true
		u.ended.Go(u.run)
	}
}

// run ends the mappings that wait, one after the other.
func (u *unmapper) run() {
	for {
		u.mu.Lock()
		if len(u.waiting) == 0 {
			u.running = false
			u.mu.Unlock()
			return
		}
		m := u.waiting[0]
		u.waiting = u.waiting[1:]
		u.mu.Unlock()
		m.Unmap()
	}
}

// close waits until all mappings have ended. Nobody calls unmap any more.
func (u *unmapper) close() { u.ended.Wait() }
