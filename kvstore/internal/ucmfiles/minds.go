package ucmfiles

import (
	"runtime"
	"sync"
)

// minds are goroutines that compute, one for each processor: checksums must hold up
// neither those who move bytes nor each other.
type minds struct {
	mu     sync.Mutex
	more   sync.Cond
	queue  []func()
	closed bool
	wg     sync.WaitGroup
}

func newMinds() *minds {
	m := &minds{}
	m.more.L = &m.mu
	for range runtime.GOMAXPROCS(0) {
		m.wg.Go(m.work)
	}
	return m
}

// do does not wait. What is queued is bounded by the shards that are under way.
func (m *minds) do(work func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = append(m.queue, work)
	m.more.Signal()
}

func (m *minds) work() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		for len(m.queue) == 0 {
			if m.closed {
				return
			}
			m.more.Wait()
		}
		work := m.queue[0]
		m.queue[0] = nil
		m.queue = m.queue[1:]
		m.mu.Unlock()
		work()
		m.mu.Lock()
	}
}

// close returns when everything is done.
func (m *minds) close() {
	m.mu.Lock()
	m.closed = true
	m.more.Broadcast()
	m.mu.Unlock()
	m.wg.Wait()
}
