package storebench

import (
	"context"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// contender is one way to the blocks. Its loads follow one another.
type contender struct {
	name string

	// load brings all blocks of a set into the buffers.
	load  func(ctx context.Context, set *blocks) error
	close func() error

	loads int
}

// sample loads sets in turns for about d and tells how fast. The buffers are wiped
// before, and one block is checked after; neither is in the time.
func (x *contender) sample(ctx context.Context, sets []*blocks, bufs *buffers, d time.Duration, round int) (gbps float64, err error) {
	clear(bufs.mem.Bytes())
	var set *blocks
	n, began := 0, time.Now()
	for n == 0 || time.Since(began) < d {
		// A cache of one set never has the one that it did not load last.
		set = sets[x.loads%len(sets)]
		x.loads++
		n++
		if err := x.load(ctx, set); err != nil {
			return 0, fmt.Errorf("%s: %w", x.name, err)
		}
	}
	elapsed := time.Since(began)
	i := round % len(set.keys)
	if err := set.check(i, bufs.parts[i]); err != nil {
		return 0, fmt.Errorf("%s: %w", x.name, err)
	}
	return float64(n) * float64(len(bufs.mem.Bytes())) / elapsed.Seconds() / 1e9, nil
}

// ofStore is a store as a contender.
func ofStore(name string, s kv.Store, bufs *buffers) *contender {
	return &contender{
		name:  name,
		load:  func(ctx context.Context, set *blocks) error { return set.loadFrom(ctx, s, bufs.parts) },
		close: s.Close,
	}
}
