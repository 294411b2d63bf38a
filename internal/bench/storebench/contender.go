package storebench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

// contender is one way to the blocks. It is opened anew for each run, so that what
// storage fills is never the same memory for one and other memory for another: how
// contiguous that happens to be makes a disk faster or slower by half. What a run
// gives back the next one mostly gets.
type contender struct {
	name string
	open func(context.Context) (*way, error)
}

// way is a contender that is open. Its loads follow one another.
type way struct {
	load  func(ctx context.Context, set *blocks) error
	parts [][]byte // where the blocks of a load are afterwards
	close func() error

	// verify tells whether so many loads were as cold, or as warm, as they should have
	// been; nil where they cannot but be.
	verify func(loads int) error
}

// sample opens, loads every set once, so that files are open and memory is there, and
// then loads sets in turns for about d and tells how fast. One block is checked.
func (x *contender) sample(ctx context.Context, sets []*blocks, d time.Duration, round int) (gbps float64, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", x.name, err)
		}
	}()
	w, err := x.open(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	loads := 0
	load := func() error {
		// A cache of one set never has the one that it did not load last.
		err := w.load(ctx, sets[loads%len(sets)])
		loads++
		return err
	}
	for range sets {
		if err := load(); err != nil {
			return 0, err
		}
	}
	for _, part := range w.parts {
		clear(part)
	}
	before, began := loads, time.Now()
	for loads == before || time.Since(began) < d {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err := load(); err != nil {
			return 0, err
		}
	}
	elapsed := time.Since(began)
	set, i := sets[(loads-1)%len(sets)], round%len(w.parts)
	if err := set.check(i, w.parts[i]); err != nil {
		return 0, err
	}
	if w.verify != nil {
		if err := w.verify(loads); err != nil {
			return 0, err
		}
	}
	moved := int64(loads-before) * int64(len(set.keys)) * set.layout.BlockBytes
	return float64(moved) / elapsed.Seconds() / 1e9, nil
}

// wayOf is a store as a way into bufs.
func wayOf(s *kvstore.Store, bufs *buffers) *way {
	return &way{
		load:  func(ctx context.Context, set *blocks) error { return set.loadFrom(ctx, s, bufs.parts) },
		parts: bufs.parts,
		close: s.Close,
	}
}
