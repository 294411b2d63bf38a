package pagesoak

import (
	"context"
	"errors"
	"time"
)

// readSome queries which keys exist and where, and reads them within the lease.
func (e *engine) readSome(ctx context.Context) error {
	pause(ctx, time.Duration(e.rng.IntN(50))*time.Millisecond)
	rank := e.rng.IntN(ranks)
	keys := e.batch()
	there, err := e.protocol.exists(ctx, rank, keys)
	if err != nil {
		return e.unlessGivenUp(err)
	}
	var found []string
	for i, is := range there {
		if is {
			found = append(found, keys[i])
		}
	}
	e.tally.misses.Add(int64(len(keys) - len(found)))
	if len(found) == 0 {
		return nil
	}
	pages, leased, err := e.protocol.locate(ctx, rank, found)
	if err != nil {
		return e.unlessGivenUp(err)
	}
	owner := map[int64]string{}
	var from []placed
	for i, page := range pages {
		if page == none {
			e.tally.misses.Add(1)
			continue
		}
		if other, twice := owner[page]; twice {
			e.tally.wrongPage("page %d of rank %d belongs to %.12s and to %.12s", page, rank, other, found[i])
		}
		owner[page] = found[i]
		from = append(from, placed{found[i], page})
	}
	if len(from) == 0 {
		return nil
	}
	// Some readers read at once, others when most of the lease has passed.
	pause(ctx, time.Duration(e.rng.Int64N(int64(e.times.lease)*3/4))*time.Duration(e.rng.IntN(2)))
	return e.get(ctx, rank, from, leased)
}

// get reads pages and checks every byte.
func (e *engine) get(ctx context.Context, rank int, from []placed, leased time.Time) error {
	if err := e.rings.ready(ctx); err != nil {
		return err
	}
	pages := make([]int64, len(from))
	for i, f := range from {
		pages[i] = f.page
		clear(e.rings.place(i))
	}
	err := e.rings.transfer(ctx, false, rank, pages)
	switch {
	case errors.Is(err, errGone):
		e.tally.daemonGone.Add(1)
		return nil
	case err != nil:
		return err
	case time.Since(leased) > e.times.lease:
		e.tally.tooLate.Add(int64(len(from)))
		return nil
	}
	for i, f := range from {
		if err := check(e.rings.place(i), f.key, rank); err != nil {
			e.tally.wrongPage("%s, page %d, %v after its location was requested: %v", e.name, f.page, time.Since(leased), err)
		}
	}
	e.tally.hits.Add(int64(len(from)))
	return nil
}
