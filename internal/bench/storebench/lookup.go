package storebench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

// queried is a store full of small blocks whose lookups are timed.
type queried struct {
	name  string
	store *kvstore.Store
}

// fill saves all blocks.
func (a *queried) fill(ctx context.Context, index *blocks) error {
	const atOnce = 1024
	bufs := make([][]byte, atOnce)
	for i := range bufs {
		bufs[i] = make([]byte, index.layout.BlockBytes)
	}
	for low := 0; low < len(index.keys); low += atOnce {
		part := &blocks{layout: index.layout, keys: index.keys[low:min(low+atOnce, len(index.keys))]}
		if err := part.saveInto(ctx, a.store, bufs); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
	}
	return nil
}

// sample looks up n keys, all of which exist, again and again, and returns the median and
// the 99th percentile in milliseconds.
func (a *queried) sample(ctx context.Context, index *blocks, n int, d time.Duration, round int) (p50, p99 float64, err error) {
	random := rand.New(rand.NewPCG(uint64(round), 1))
	keys, found := make([]kvstore.Key, n), make([]bool, n)
	var took []time.Duration
	for began := time.Now(); len(took) < 100 || time.Since(began) < d; {
		for i := range keys {
			keys[i] = index.keys[random.IntN(len(index.keys))]
		}
		clear(found)
		start := time.Now()
		err := a.store.Lookup(ctx, keys, found)
		took = append(took, time.Since(start))
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", a.name, err)
		}
		if i := slices.Index(found, false); i >= 0 {
			return 0, 0, fmt.Errorf("%s: block %s is not there any more", a.name, keys[i])
		}
	}
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[int(share*float64(len(took)-1))]) / float64(time.Millisecond)
	}
	return at(0.5), at(0.99), nil
}
