package pagesoak

import (
	"context"
	"errors"
	"time"
)

// outcome is how a save ends.
type outcome int

const (
	saved    outcome = iota
	vanishes         // its connection breaks during a request
	dies             // it ends between allocation and confirmation
	slow             // it writes when half of the reservation has passed
	fails            // it fails for some pages, and releases them
	twice            // it confirms again, as after a lost answer
)

func (e *engine) drawOutcome() outcome {
	switch n := e.rng.IntN(20); {
	case n < 12:
		return saved
	case n < 13:
		return vanishes
	case n < 14:
		return dies
	case n < 15:
		return slow
	case n < 18:
		return fails
	default:
		return twice
	}
}

// writeSome saves a batch on all ranks, as tensor-parallel workers do, or on one rank only,
// as when the other worker died.
func (e *engine) writeSome(ctx context.Context) error {
	keys := e.batch()
	alone := e.rng.IntN(16) == 0
	first := e.rng.IntN(ranks)
	for i := range ranks {
		if err := e.save(ctx, (first+i)%ranks, keys, e.drawOutcome()); err != nil {
			return err
		}
		if alone {
			break
		}
	}
	// A worker computes before it saves again.
	pause(ctx, time.Duration(e.rng.IntN(100))*time.Millisecond)
	return nil
}

func (e *engine) save(ctx context.Context, rank int, keys []string, f outcome) error {
	if f == vanishes {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(e.rng.IntN(2000))*time.Microsecond)
		defer cancel()
		e.protocol.allocate(ctx, rank, keys)
		return nil
	}
	pages, reserved, err := e.protocol.allocate(ctx, rank, keys)
	if err != nil {
		return e.unlessGivenUp(err)
	}
	var to []placed
	for i, page := range pages {
		if page == none {
			e.tally.refused.Add(1)
		} else {
			to = append(to, placed{keys[i], page})
		}
	}
	if len(to) == 0 {
		return nil
	}
	var release []int64
	switch f {
	case dies:
		e.tally.abandoned.Add(int64(len(to)))
		_, err := e.put(ctx, rank, to[:e.rng.IntN(len(to)+1)], reserved)
		return err
	case slow:
		e.tally.slow.Add(int64(len(to)))
		pause(ctx, e.times.reserve/2)
	case fails:
		// These may be pages of complete keys: vLLM does not distinguish them.
		n := e.rng.IntN(len(to))
		for _, w := range to[n:] {
			release = append(release, w.page)
		}
		to = to[:n]
		e.tally.released.Add(int64(len(release)))
	}
	if written, err := e.put(ctx, rank, to, reserved); err != nil || !written {
		return err
	}
	err = e.protocol.confirm(ctx, rank, to, release)
	if err == nil && f == twice {
		err = e.protocol.confirm(ctx, rank, to, nil)
	}
	if err != nil {
		return e.unlessGivenUp(err)
	}
	e.tally.stored.Add(int64(len(to)))
	for _, w := range to {
		e.tally.confirmed(rank, w.key)
	}
	return nil
}

// put writes the content of keys to their pages, while the reservation lasts.
func (e *engine) put(ctx context.Context, rank int, to []placed, reserved time.Time) (written bool, err error) {
	if len(to) == 0 {
		return true, nil
	}
	if err := e.rings.ready(ctx); err != nil {
		return false, err
	}
	pages := make([]int64, len(to))
	for i, w := range to {
		fill(e.rings.place(i), w.key, rank)
		pages[i] = w.page
	}
	if time.Since(reserved) > e.times.reserve {
		e.tally.stalled.Add(1)
		return false, nil
	}
	err = e.rings.transfer(ctx, true, rank, pages)
	if errors.Is(err, errGone) {
		e.tally.daemonGone.Add(1)
		return false, nil
	}
	// A page is in quarantine before another writer gets it. If the machine stood still for
	// longer than that, this writer has made pages wrong.
	if took := time.Since(reserved); err == nil && took > e.times.reserve+e.times.quarantine {
		return false, errors.New("this machine is too slow for the test: a write ended " + took.String() + " after its pages were reserved")
	}
	return err == nil, err
}

// unlessGivenUp returns nil for a request that was given up: to an engine, that is only a
// save or a load that failed.
func (e *engine) unlessGivenUp(err error) error {
	if errors.Is(err, errGaveUp) {
		return nil
	}
	return err
}
