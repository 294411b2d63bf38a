package tier

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// memory is a bounded number of buffers of one size. They are made when they are first needed. One that a
// storage may still use is not used again. Whoever uses it has it in hand, so when the collector finds that nobody
// has, its place is free for a new one.
type memory struct {
	bytes   int64 // of each
	buffers int
	allLost func() // called when a storage may still use all of them; it must not wait

	mu       sync.Mutex
	free     [][]byte
	made     int
	lost     int
	returned chan struct{} // closed and replaced when one comes back
}

func newMemory(bytes int64, buffers int, allLost func()) *memory {
	return &memory{bytes: bytes, buffers: buffers, allLost: allLost, returned: make(chan struct{})}
}

const fewestBlocks = 4

// blocksIn returns how many buffers for a block fit into memory of a size.
func blocksIn(sizeBytes, blockBytes int64) int {
	return int(max(fewestBlocks, min(sizeBytes/blockBytes, 1<<16)))
}

// try returns a buffer, nil if none is free, and then a channel that says when to try again.
func (m *memory) try() ([]byte, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.free); n > 0 {
		buf := m.free[n-1]
		m.free = m.free[:n-1]
		return buf, nil
	}
	if m.made < m.buffers {
		m.made++
		return make([]byte, m.bytes), nil
	}
	return nil, m.returned
}

// errNoMemory means that a storage may still use all buffers.
var errNoMemory = errors.New("kvstore: a store did not answer so often that it may still use all memory for blocks between the two; some comes back when it has answered")

// take waits for a buffer. Now and then it calls idle, which may give some back.
func (m *memory) take(ctx context.Context, idle func()) ([]byte, error) {
	for {
		buf, returned := m.try()
		if buf != nil {
			return buf, nil
		}
		m.mu.Lock()
		gone := m.lost == m.buffers
		m.mu.Unlock()
		if gone {
			return nil, errNoMemory
		}
		idle()
		again := time.NewTimer(time.Second)
		select {
		case <-returned:
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, ctx.Err()
		}
		again.Stop()
	}
}

// put gives a buffer back after a call that ended with err.
func (m *memory) put(buf []byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !errors.Is(err, kv.ErrAbandoned) {
		m.free = append(m.free, buf)
		m.signal()
		return
	}
	runtime.AddCleanup(&buf[0], (*memory).unused, m)
	if m.lost++; m.lost == m.buffers {
		m.allLost()
	}
	m.signal()
}

// unused is called when nobody uses a buffer any more that a storage might still have used.
func (m *memory) unused() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost--
	m.made--
	m.signal()
}

// signal wakes all that wait. The lock is held.
func (m *memory) signal() {
	close(m.returned)
	m.returned = make(chan struct{})
}
