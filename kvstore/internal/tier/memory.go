package tier

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// memory is a bounded number of buffers for a block each. They are made when they are first
// needed. One that a storage may still use is not used again, and stays allocated.
type memory struct {
	blockBytes int64
	blocks     int

	mu       sync.Mutex
	free     [][]byte
	made     int
	lost     [][]byte
	returned chan struct{} // closed and replaced when one comes back
}

const fewestBlocks = 4

func newMemory(blockBytes, sizeBytes int64) *memory {
	return &memory{blockBytes: blockBytes, blocks: int(max(fewestBlocks, min(sizeBytes/blockBytes, 1<<16))), returned: make(chan struct{})}
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
	if m.made < m.blocks {
		m.made++
		return make([]byte, m.blockBytes), nil
	}
	return nil, m.returned
}

// errNoMemory means that a storage may still use all buffers.
var errNoMemory = errors.New("kvstore: the far store did not answer so often that it may still use all memory for its blocks; close the store and open it again")

// take waits for a buffer. Now and then it calls idle, which may give some back.
func (m *memory) take(ctx context.Context, idle func()) ([]byte, error) {
	for {
		buf, returned := m.try()
		if buf != nil {
			return buf, nil
		}
		m.mu.Lock()
		gone := len(m.lost) == m.blocks
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
	if errors.Is(err, kv.ErrAbandoned) {
		m.lost = append(m.lost, buf)
	} else {
		m.free = append(m.free, buf)
	}
	close(m.returned)
	m.returned = make(chan struct{})
}
