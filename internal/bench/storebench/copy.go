package storebench

import (
	"context"
	"sync"
	"sync/atomic"
)

// openCopy opens the baseline of a warm cache: as many threads as the cache has copy the
// same bytes between memory of the same kind.
func openCopy(set *blocks, bufs *buffers, threads int) (*way, error) {
	from, err := newBuffers(len(bufs.parts), set.layout.BlockBytes)
	if err != nil {
		return nil, err
	}
	set.fill(from.parts)
	load := func(context.Context, *blocks) error {
		var wg sync.WaitGroup
		var next atomic.Int64
		for range threads {
			wg.Go(func() {
				for {
					i := int(next.Add(1)) - 1
					if i >= len(bufs.parts) {
						return
					}
					copy(bufs.parts[i], from.parts[i])
				}
			})
		}
		wg.Wait()
		return nil
	}
	return &way{load: load, parts: bufs.parts, close: from.close}, nil
}
