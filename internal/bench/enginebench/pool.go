package enginebench

import (
	"context"
	"fmt"
	"sync"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

// pool is the engine's memory, in place of HBM, cut into blocks.
type pool struct {
	mem    *memory.Memory
	blocks int

	mu       sync.Mutex
	free     [][]byte
	lost     int           // left to a store that did not answer
	returned chan struct{} // closed and replaced when blocks are returned
}

func newPool(blocks int, blockBytes int64) (*pool, error) {
	mem, err := memory.New(int64(blocks) * blockBytes)
	if err != nil {
		return nil, fmt.Errorf("bench: memory for %d blocks of %s, which a larger --scale makes smaller: %w", blocks, measure.SizeText(blockBytes), err)
	}
	p := &pool{mem: mem, blocks: blocks, returned: make(chan struct{})}
	for i := range int64(blocks) {
		p.free = append(p.free, mem.Bytes()[i*blockBytes:(i+1)*blockBytes:(i+1)*blockBytes])
	}
	return p, nil
}

// register tells a store of the memory, which it may use in place.
func (p *pool) register(s *kvstore.Store) error {
	return s.Register(p.mem.Name(), p.mem.Bytes())
}

// take waits until n blocks are free. Only one goroutine may call it: two could wait for
// each other for ever.
func (p *pool) take(ctx context.Context, n int) ([][]byte, error) {
	for {
		p.mu.Lock()
		if n > p.blocks-p.lost {
			p.mu.Unlock()
			return nil, fmt.Errorf("bench: a prompt of %d blocks does not fit into memory for %d, of which %d were left to a store that did not answer", n, p.blocks, p.lost)
		}
		if n <= len(p.free) {
			rest := len(p.free) - n
			taken := append([][]byte(nil), p.free[rest:]...)
			p.free = p.free[:rest]
			p.mu.Unlock()
			return taken, nil
		}
		returned := p.returned
		p.mu.Unlock()
		select {
		case <-returned:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// put returns blocks to the pool. Abandoned blocks, which the store may still use, are
// not used again.
func (p *pool) put(bufs [][]byte, abandoned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if abandoned {
		p.lost += len(bufs)
	} else {
		p.free = append(p.free, bufs...)
	}
	close(p.returned)
	p.returned = make(chan struct{})
}

// close frees the memory. Every store that it was registered with is closed before.
func (p *pool) close() error { return p.mem.Close() }
