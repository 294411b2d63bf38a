package policybench

import "context"

// cache is a simulated cache of blocks of one size.
type cache interface {
	// has reports whether a block is held. It changes nothing.
	has(block int32) bool
	// use records a use of a block and stores it if it is missing. depth is its place in
	// its prompt. nowMs rises from request to request.
	use(block int32, nowMs int64, depth int)
}

// contender is a policy with its name in reports.
type contender struct {
	name string
	make func(distinctBlocks, capacityBlocks int) cache
}

// contenders returns the policies that know no future, kv3fs's own first.
func contenders() []contender {
	return []contender{
		{"kv3fs", func(n, capacity int) cache { return newTuned(n, capacity) }},
		{"lru", func(n, capacity int) cache { return newLRU(n, capacity) }},
		{"fifo", func(n, capacity int) cache { return newFIFO(n, capacity) }},
		{"lfu", func(n, capacity int) cache { return newLFU(n, capacity) }},
		{"s3fifo", func(n, capacity int) cache { return newS3FIFO(n, capacity) }},
	}
}

// simulate returns the number of hits.
//
// Requests with the same time come one millisecond after the other, so that there is an
// order also in a trace without times.
func simulate(ctx context.Context, t *Trace, c cache) (hits int, err error) {
	nowMs := int64(-1)
	for i, r := range t.requests {
		if i%1024 == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		blocks := t.of(r)
		for _, b := range blocks {
			if !c.has(b) {
				break
			}
			hits++
		}
		nowMs = max(nowMs+1, r.atMs)
		for depth := len(blocks) - 1; depth >= 0; depth-- {
			c.use(blocks[depth], nowMs, depth)
		}
	}
	return hits, nil
}
