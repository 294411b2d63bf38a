package tree

import (
	"cmp"
	"sync"
	"time"
)

// movePatience is how long a move may keep others waiting. One that takes longer hangs with
// the directory that it is in.
const movePatience = 250 * time.Millisecond

// moves orders changes of names. Most of them, those whose directories the kernel has
// locked, run side by side. Those that need all paths to stay as they are run alone. It is
// like sync.RWMutex, but nobody waits longer than movePatience for a call that hangs: then
// it may happen that the tree takes an older place of a file for its place until the next
// lookup, or that an open fails with ESTALE.
type moves struct {
	patience time.Duration // 0: movePatience; tests on a busy machine have more

	mu     sync.Mutex
	shared map[*move]bool
	alone  *move // runs alone, or waits for those in shared
}

// move is one use of moves.
type move struct {
	patience time.Duration
	began    time.Time
	over     chan struct{} // closed at its end
}

func (m *moves) newMove() *move {
	return &move{patience: cmp.Or(m.patience, movePatience), began: time.Now(), over: make(chan struct{})}
}

// share begins a move that may run beside others. The caller calls end.
func (m *moves) share() (end func()) {
	self := m.newMove()
	m.awaitAlone(func() {
		if m.shared == nil {
			m.shared = make(map[*move]bool)
		}
		self.began = time.Now()
		m.shared[self] = true
	})
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.shared, self)
		close(self.over)
	}
}

// exclude begins a move that runs alone. The caller calls end.
func (m *moves) exclude() (end func()) {
	self := m.newMove()
	var before []*move
	m.awaitAlone(func() {
		self.began = time.Now()
		m.alone = self
		for other := range m.shared {
			before = append(before, other)
		}
	})
	for _, other := range before {
		other.await()
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.alone == self {
			m.alone = nil
		}
		close(self.over)
	}
}

// awaitAlone calls fn, with mu held, when no move runs alone or it has done so for too long.
func (m *moves) awaitAlone(fn func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other := m.alone; other != nil && !other.late(); other = m.alone {
		m.mu.Unlock()
		other.await()
		m.mu.Lock()
	}
	fn()
}

func (m *move) late() bool { return time.Since(m.began) >= m.patience }

// await returns at the end of m, or when it is late.
func (m *move) await() {
	limit := time.NewTimer(time.Until(m.began.Add(m.patience)))
	defer limit.Stop()
	select {
	case <-m.over:
	case <-limit.C:
	}
}
