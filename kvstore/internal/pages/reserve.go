package pages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// page is a page that was reserved for a block.
type page struct {
	number int64

	// Writes may begin until writeBy: then they end before the service can give the page
	// to another block. The reservation lasts until confirmBy.
	writeBy, confirmBy time.Time
}

// reservation is being made, or has been made and no block has taken its page yet.
type reservation struct {
	made chan struct{} // closed when the rest is set
	page *page         // nil: err says why there is none
	err  error
	left bool // its batch was cancelled
}

// errPresent says that a block is present already.
var errPresent = errors.New("the block is there already")

// reserve reserves pages for those blocks of a batch that no batch of this store is writing,
// with as few requests as possible, and returns the reservations.
//
// It does not reserve pages for blocks that are present: the service would protect their
// pages for as long as a reservation lasts, and a full file could not evict them.
func (s *Store) reserve(ctx context.Context, keys []kv.Key) map[kv.Key]*reservation {
	mine := map[kv.Key]*reservation{}
	var wanted []kv.Key
	s.mu.Lock()
	for _, k := range keys {
		if s.unfinished[k] == nil && s.reservations[k] == nil {
			b := &reservation{made: make(chan struct{})}
			s.reservations[k], mine[k] = b, b
			wanted = append(wanted, k)
		}
	}
	s.mu.Unlock()
	var broken []kv.Key
	for at := range chunks(wanted) {
		absent, bad := s.answerPresent(ctx, mine, wanted[at:min(at+batchKeys, len(wanted))])
		s.reserveSome(ctx, mine, absent)
		broken = append(broken, bad...)
	}
	for absent := range slices.Chunk(s.replaceAll(ctx, mine, broken), batchKeys) {
		s.reserveSome(ctx, mine, absent)
	}
	return mine
}

// reserveSome makes reservations of blocks, by one request.
func (s *Store) reserveSome(ctx context.Context, mine map[kv.Key]*reservation, keys []kv.Key) {
	if len(keys) == 0 {
		return
	}
	asked := time.Now()
	grants, err := s.service.reserve(ctx, keys)
	for i, k := range keys {
		b := mine[k]
		switch {
		case err != nil:
			b.err, b.left = err, ctx.Err() != nil
		case grants[i].present:
			b.err = errPresent
		case grants[i].page == none:
			b.err = fmt.Errorf("%w: every page of %s is being read or written", kv.ErrFull, s.o.File)
		default:
			b.page = s.newPage(grants[i].page, asked)
		}
		s.announce(k, b)
	}
}

// answerPresent settles the reservations of blocks that are present and can be read, and returns the other keys: those that are absent, and
// those that could not be read. If the service does not answer, all keys are returned as absent: reserve asks it again.
func (s *Store) answerPresent(ctx context.Context, mine map[kv.Key]*reservation, keys []kv.Key) (absent, broken []kv.Key) {
	there, err := s.service.exists(ctx, keys)
	if err != nil {
		return keys, nil
	}
	for i, k := range keys {
		switch _, bad := s.unreadable.find(k); {
		case !there[i]:
			absent = append(absent, k)
		case bad:
			broken = append(broken, k)
		default:
			mine[k].err = errPresent
			s.announce(k, mine[k])
		}
	}
	return absent, broken
}

// replaceAll replaces blocks that could not be read. It settles the reservations of the others, and returns the keys that are absent now. The
// batch's other blocks, for which pages are reserved by then, wait for it, so it takes at most half of the time that is left; and once nothing
// answers, it looks at no more.
func (s *Store) replaceAll(ctx context.Context, mine map[kv.Key]*reservation, keys []kv.Key) (absent []kv.Key) {
	half, cancel := ctx, func() {}
	if end, bounded := ctx.Deadline(); bounded {
		half, cancel = until(ctx, time.Now().Add(time.Until(end)/2))
	}
	defer cancel()
	var away error
	for _, k := range keys {
		err := away
		if err == nil {
			err = errPresent
			if what, bad := s.unreadable.find(k); bad {
				err = s.replace(half, k, what)
			}
		}
		if kv.IsAway(err) {
			away = err
		}
		if err == nil {
			absent = append(absent, k)
			continue
		}
		mine[k].err, mine[k].left = err, err != errPresent && ctx.Err() != nil
		s.announce(k, mine[k])
	}
	return absent
}

// announce wakes the batches that wait for a reservation.
func (s *Store) announce(key kv.Key, b *reservation) {
	if b.page == nil {
		s.forget(key, b) // the answer counts only for those that wait already
	}
	close(b.made)
}

func (s *Store) newPage(number int64, asked time.Time) *page {
	o := &s.o
	return &page{
		number:    number,
		writeBy:   asked.Add(min(o.Reserve, o.Reserve+o.Quarantine-o.Timeout)),
		confirmBy: asked.Add(o.Reserve),
	}
}

// forget drops a reservation. If no block has taken its page, it ends at the service by
// itself, no later than if it were released.
func (s *Store) forget(key kv.Key, b *reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reservations[key] == b {
		delete(s.reservations, key)
	}
}

// take returns a page for a block that no batch is writing: one that was reserved, perhaps by
// another batch, or else a new one. Only one goroutine at a time does so for a key.
func (s *Store) take(ctx context.Context, key kv.Key) (*page, error) {
	for {
		s.mu.Lock()
		b := s.reservations[key]
		s.mu.Unlock()
		if b == nil {
			own := s.reserve(ctx, []kv.Key{key})
			if b = own[key]; b == nil {
				continue // another goroutine was faster
			}
		}
		select {
		case <-b.made:
		case <-ctx.Done():
			return nil, endOf(ctx)
		}
		s.mu.Lock()
		if s.reservations[key] == b {
			delete(s.reservations, key)
		}
		if b.page != nil {
			s.unfinished[key] = b.page
		}
		s.mu.Unlock()
		if b.left && ctx.Err() == nil {
			continue
		}
		return b.page, b.err
	}
}

// tooOld reports whether an unfinished block may no longer be written to, and drops it, so
// that the next batch can begin it again.
func (s *Store) tooOld(key kv.Key) bool {
	s.mu.Lock()
	p := s.unfinished[key]
	s.mu.Unlock()
	if p == nil || time.Now().Before(p.writeBy) {
		return false
	}
	if b := s.blocks.GiveUp(key, func(its *page) bool { return its == p }); b != nil {
		s.drop(b)
	}
	return true
}

// finish forgets a block that is confirmed or was given up.
func (s *Store) finish(b *block) {
	s.mu.Lock()
	delete(s.unfinished, b.Key)
	s.mu.Unlock()
	s.blocks.Finish(b)
}

// sweep drops the blocks that have had no new shard for idle.
func (s *Store) sweep(idle time.Duration) {
	for _, b := range s.blocks.Expire(idle) {
		s.drop(b)
	}
}

func (s *Store) drop(b *block) {
	s.counters.DroppedBlocks.Add(1)
	s.finish(b)
}

// sweepEvery bounds how often batches sweep.
const sweepEvery = time.Second

func (s *Store) sweepNow() {
	s.mu.Lock()
	due := time.Since(s.lastSwept) > sweepEvery
	if due {
		s.lastSwept = time.Now()
	}
	s.mu.Unlock()
	if due {
		s.sweep(s.o.Reserve)
	}
}
