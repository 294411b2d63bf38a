package tree

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// mappedPeriod is how often the files are looked at that clients may write to through
// mappings, which makes them grow within their length and tells nobody.
const mappedPeriod = 100 * time.Millisecond

// mappings are those files, with the number of their handles. The zero value is ready for use.
type mappings struct {
	mu    sync.Mutex
	files map[*node]int
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

func (m *mappings) all() map[*node]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.files)
}

// watchMappings accounts for what grows through mappings, until ctx ends. Files that are only
// mapped, and not open, are looked at less often.
func (t *Tree) watchMappings(ctx context.Context) {
	const closedEvery = 5
	tick := time.NewTicker(mappedPeriod)
	defer tick.Stop()
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for n, handles := range t.mapped.all() {
			if handles > 0 || turn%closedEvery == 0 {
				t.lookAtMapped(n, handles)
			}
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
