package storebench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

// contender is one way to load the blocks. It is opened anew for each run, so that no
// contender keeps its memory for all runs: how contiguous memory happens to be makes a
// disk faster or slower by half. A run mostly gets the memory that the one before freed.
type contender struct {
	name string
	open func(context.Context) (*way, error)

	// before, if not nil, is called before each load; its time does not count.
	before func() error
}

// way is an open contender. It makes one load at a time.
type way struct {
	load  func(ctx context.Context, set *blocks) error
	parts [][]byte // where a load puts the blocks
	close func() error

	// verify checks that so many loads were cold, or warm, as they should have been.
	// It is nil if they cannot be otherwise.
	verify func(loads int) error
}

// sample opens the contender and loads every set once, so that files are open and memory
// is allocated. Then it loads sets in turn for about d and returns the rate. It checks
// all blocks of the last load.
func (x *contender) sample(ctx context.Context, sets []*blocks, d time.Duration) (gbps float64, err error) {
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
	var spent time.Duration
	load := func() error {
		if x.before != nil {
			if err := x.before(); err != nil {
				return err
			}
		}
		for _, part := range w.parts {
			spoil(part)
		}
		began := time.Now()
		// A cache of one set never has the one that it did not load last.
		err := w.load(ctx, sets[loads%len(sets)])
		spent += time.Since(began)
		loads++
		return err
	}
	for range sets {
		if err := load(); err != nil {
			return 0, err
		}
	}
	before := loads
	for spent = 0; loads == before || spent < d; {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err := load(); err != nil {
			return 0, err
		}
	}
	set := sets[(loads-1)%len(sets)]
	for i, part := range w.parts {
		if err := set.check(i, part); err != nil {
			return 0, err
		}
	}
	if w.verify != nil {
		if err := w.verify(loads); err != nil {
			return 0, err
		}
	}
	moved := int64(loads-before) * int64(len(set.keys)) * set.layout.BlockBytes
	return float64(moved) / spent.Seconds() / 1e9, nil
}

// spoil changes a word of each page, so that what a load leaves out is not taken for what an
// earlier one brought. It is quick, and leaves the processor's cache to the load.
func spoil(part []byte) {
	for off := 0; off+8 <= len(part); off += 4096 {
		clear(part[off : off+8])
	}
}

// wayOf returns a way that loads from a store into bufs.
func wayOf(s *kvstore.Store, bufs *buffers) *way {
	return &way{
		load:  func(ctx context.Context, set *blocks) error { return set.loadFrom(ctx, s, bufs.parts) },
		parts: bufs.parts,
		close: s.Close,
	}
}
