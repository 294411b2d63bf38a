package tree

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// mappedPeriod is how often the files are looked at that clients may write to through
	// mappings, which makes them grow within their length and tells nobody.
	mappedPeriod = 100 * time.Millisecond
	// mostLooks bounds how many of them are looked at in one period, lest thousands of open
	// files keep a processor busy: each then has its turn later.
	mostLooks = 512
)

// mappings are those files, with the number of their handles. The zero value is ready for use.
type mappings struct {
	mu    sync.Mutex
	files map[*node]int
	round []*node // those whose turn is still to come
	turn  int     // of rounds
}

// add counts handles of n. A file without any stays, because its mappings do.
func (m *mappings) add(n *node, handles int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files == nil {
		m.files = make(map[*node]int)
	}
	m.files[n] += handles
}

// forget drops a file without handles.
func (m *mappings) forget(n *node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[n] == 0 {
		delete(m.files, n)
	}
}

// closedEvery says in which rounds those files have a turn that are only mapped, and not open.
const closedEvery = 5

// next returns the files, with the number of their handles, whose turn it is now: all in turn,
// so many at most.
func (m *mappings) next(most int) map[*node]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.round) == 0 {
		m.turn++
		for n, handles := range m.files {
			if handles > 0 || m.turn%closedEvery == 0 {
				m.round = append(m.round, n)
			}
		}
	}
	now := make(map[*node]int)
	for len(m.round) > 0 && len(now) < most {
		n := m.round[len(m.round)-1]
		m.round = m.round[:len(m.round)-1]
		if handles, ok := m.files[n]; ok {
			now[n] = handles
		}
	}
	return now
}

// watchMappings accounts for what grows through mappings, until ctx ends.
func (t *Tree) watchMappings(ctx context.Context) {
	tick := time.NewTicker(mappedPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for n, handles := range t.mapped.next(mostLooks) {
			t.lookAtMapped(n, handles)
		}
	}
}

func (t *Tree) lookAtMapped(n *node, handles int) {
	if f := n.pinAny(); f != nil {
		t.accountFD(n.key, 0, f.fd)
		f.Release()
		return
	}
	fd, _, err := t.openNode(n, unix.O_RDONLY|unix.O_NONBLOCK, nil)
	if err != nil {
		if handles == 0 {
			t.mapped.forget(n)
		}
		return
	}
	defer unix.Close(fd)
	t.accountFD(n.key, 0, fd)
	if handles == 0 && (!tellsWriters(fd) || !hasWriter(fd)) {
		t.mapped.forget(n)
	}
}
