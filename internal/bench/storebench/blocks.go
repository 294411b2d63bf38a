package storebench

import (
	"context"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

// namespace returns the namespace of all blocks here.
func namespace() keys.Namespace { return keys.Namespace{Model: "kv3fs bench store", BlockTokens: 1} }

// blocks is what one load loads: keys, and contents that follow from them.
type blocks struct {
	set    uint64
	layout kvstore.Layout
	keys   []kvstore.Key
}

func blocksOf(set uint64, n int, l kvstore.Layout) *blocks {
	b := &blocks{set: set, layout: l, keys: make([]kvstore.Key, n)}
	for i := range b.keys {
		workload.PatternOf(set, uint64(i), 1).Fill(b.keys[i][:])
	}
	return b
}

func (b *blocks) content(i int) workload.Pattern { return workload.PatternOf(b.set, uint64(i)) }

// fill writes the contents of the blocks into as many buffers.
func (b *blocks) fill(bufs [][]byte) {
	for i, buf := range bufs {
		b.content(i).Fill(buf)
	}
}

// check checks one loaded block.
func (b *blocks) check(i int, buf []byte) error {
	if wrong, first := b.content(i).Check(buf); wrong != 0 {
		return fmt.Errorf("%d wrong bytes in block %s, the first at offset %d", wrong, b.keys[i], first)
	}
	return nil
}

// loadFrom loads all blocks.
func (b *blocks) loadFrom(ctx context.Context, s *kvstore.Store, bufs [][]byte) error {
	task, err := s.Load(ctx, b.layout.ByBlock(b.keys, bufs))
	if err != nil {
		return err
	}
	return task.Wait(ctx)
}

// saveInto saves all blocks, whose contents are in bufs.
func (b *blocks) saveInto(ctx context.Context, s *kvstore.Store, bufs [][]byte) error {
	task, err := s.Save(ctx, b.layout.ByBlock(b.keys, bufs))
	if err != nil {
		return err
	}
	if err := task.Wait(ctx); err != nil {
		return err
	}
	return s.Flush(ctx)
}

// buffers are shared memory, a part for each block of a load.
type buffers struct {
	mem   *memory.Memory
	parts [][]byte
}

func newBuffers(n int, blockBytes int64) (*buffers, error) {
	mem, err := memory.New(int64(n) * blockBytes)
	if err != nil {
		return nil, err
	}
	return &buffers{mem, cut(mem.Bytes(), blockBytes)}, nil
}

// cut divides memory into parts.
func cut(mem []byte, partBytes int64) (parts [][]byte) {
	for ; len(mem) > 0; mem = mem[partBytes:] {
		parts = append(parts, mem[:partBytes:partBytes])
	}
	return parts
}

func (b *buffers) close() error { return b.mem.Close() }
