package segment

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Shards that are neighbours in the block and in memory are one move, up to a size.
// Others are a move each.
func TestNeighboursAreMovedAtOnce(t *testing.T) {
	for _, c := range []struct {
		l     kv.Layout
		moves []int // lengths of the moves of two blocks, heads left out
		apart bool  // each shard has memory of its own
	}{
		{l: kv.Layout{BlockBytes: 488 * 64, ShardBytes: 64}, moves: []int{488 * 64, 488 * 64}},
		{l: kv.Layout{BlockBytes: 3 * 64, ShardBytes: 64}, moves: []int{64, 64, 64, 64, 64, 64}, apart: true},
		{l: kv.Layout{BlockBytes: 9 << 20, ShardBytes: 3 << 20}, moves: []int{3 << 20, 3 << 20, 3 << 20, 3 << 20, 3 << 20, 3 << 20}},
		{l: kv.Layout{BlockBytes: 6 << 20, ShardBytes: 1 << 20}, moves: []int{2 << 20, 2 << 20, 4 << 20, 4 << 20}},
	} {
		t.Run(fmt.Sprintf("%d in %d", c.l.BlockBytes, c.l.Shards()), func(t *testing.T) {
			m := newInterceptor()
			o := options(t.TempDir(), c.l, 3, 2)
			o.Engine = m
			s := open(t, o)
			var mu sync.Mutex
			var reads, writes []int
			m.intercept(func(op transfer.Op, do func()) {
				if (op.Offset-s.geo.headAt(0))%s.geo.strideBytes != 0 {
					mu.Lock()
					if op.Write {
						writes = append(writes, len(op.Buf))
					} else {
						reads = append(reads, len(op.Buf))
					}
					mu.Unlock()
				}
				do()
			})
			shards := shardsOf(c.l, keysOf(0, 2)...)
			if c.apart {
				for i := range shards {
					shards[i].Buf = make([]byte, c.l.ShardBytes)
				}
			}
			if err := beginSave(t, s, shards).Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
			for i := range shards {
				clear(shards[i].Buf)
			}
			task, err := s.Load(context.Background(), shards)
			if err == nil {
				err = task.Wait(context.Background())
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, sh := range shards {
				if n, _ := content(sh.Key, sh.Index).Check(sh.Buf); n > 0 {
					t.Errorf("%d wrong bytes in shard %d", n, sh.Index)
				}
			}
			m.intercept(nil)
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(reads)
			slices.Sort(writes)
			if !slices.Equal(reads, c.moves) || !slices.Equal(writes, c.moves) {
				t.Errorf("read %v and wrote %v, not %v", reads, writes, c.moves)
			}
		})
	}
}

// A batch with more blocks than there are buffers for heads waits until its own heads
// are read.
func TestMoreBlocksThanHeadBuffers(t *testing.T) {
	const blocks = 3 * headBuffers
	l := kv.Layout{BlockBytes: 512, ShardBytes: 512}
	s := open(t, options(t.TempDir(), l, 6, blocks/3))
	save(t, s, keysOf(0, blocks)...)
	loads(t, s, keysOf(0, blocks)...)
	until(t, "all buffers are back", func() bool { return len(s.heads.free) == headBuffers })
}
