package tier

import (
	"errors"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const (
	senders       = 2
	sendAtOnce    = 32       // blocks of each, at most
	sendBytesOnce = 16 << 20 // and bytes, about
	mostLost      = 8        // buffers that a storage may still use; then nothing is sent any more

	retryAfter, retryMost = time.Second, 30 * time.Second
)

// sender is a goroutine that sends blocks to the far store.
func (s *Store) sender() {
	most := int(min(sendAtOnce, max(1, sendBytesOnce/s.layout.BlockBytes)))
	var buf []byte
	var lost [][]byte // kept: a storage may still use them
	pause := retryAfter
	for {
		some, hurry, ok := s.nextUnsent(most)
		if !ok {
			return
		}
		if buf == nil && len(lost) < mostLost {
			buf = make([]byte, int64(most)*s.layout.BlockBytes)
		}
		failed, abandoned := s.sendSome(some, buf)
		if abandoned {
			lost = append(lost, buf)
			buf = nil
		}
		if !failed {
			pause = retryAfter
			continue
		}
		s.pause(pause, hurry)
		pause = min(2*pause, retryMost)
	}
}

// nextUnsent waits for blocks to send, and for the far store to answer.
func (s *Store) nextUnsent(most int) (some []*parcel, hurry int, ok bool) {
	u := s.unsent
	for {
		healthy := s.health.change()
		away := s.health.err()
		u.mu.Lock()
		if u.ended && away != nil {
			for _, p := range u.queue {
				if !p.left {
					s.loseLocked(away)
					u.leave(p)
				}
			}
			u.queue = nil
		}
		if away == nil {
			for len(u.queue) > 0 && len(some) < most {
				p := u.queue[0]
				u.queue = u.queue[1:]
				if !p.left { // deleted
					p.sending = true
					some = append(some, p)
				}
			}
		}
		ended, changed := u.ended && len(u.queue) == 0, u.changed
		hurry = u.hurry
		u.mu.Unlock()
		switch {
		case len(some) > 0:
			return some, hurry, true
		case ended:
			return nil, 0, false
		}
		select {
		case <-changed:
		case <-healthy:
		case <-s.ctx.Done():
			return nil, 0, false
		}
	}
}

// pause waits before what has failed is tried again. A Flush since the before-th, and Close,
// end it.
func (s *Store) pause(d time.Duration, before int) {
	u := s.unsent
	timer := time.NewTimer(d)
	defer timer.Stop()
	u.mu.Lock()
	for u.hurry == before && !u.ended {
		changed := u.changed
		u.mu.Unlock()
		select {
		case <-changed:
			u.mu.Lock()
			continue
		case <-timer.C:
		case <-s.ctx.Done():
		}
		return
	}
	u.mu.Unlock()
}

// sendSome sends blocks that the far store does not have. It reports whether some are to be
// tried again, and whether the memory may still be in use.
func (s *Store) sendSome(some []*parcel, buf []byte) (failed, abandoned bool) {
	retry := func(p *parcel, err error) {
		s.health.note(err)
		failed = s.failed(p, named(s.farName, err)) || failed
	}
	keys := make([]kv.Key, len(some))
	for i, p := range some {
		keys[i] = p.key
	}
	found := make([]bool, len(keys))
	if err := s.far.Lookup(s.ctx, keys, found); err != nil {
		for _, p := range some {
			retry(p, err)
		}
		return failed, false
	}
	var rest []*parcel
	for i, p := range some {
		if found[i] {
			s.sent(p)
		} else {
			rest = append(rest, p)
		}
	}
	if len(rest) == 0 {
		return failed, false
	}
	if buf == nil {
		for _, p := range rest {
			retry(p, errNoMemory)
		}
		return failed, false
	}
	ready, abandoned := s.readBack(rest, buf)
	if abandoned || len(ready) == 0 {
		for _, p := range ready {
			retry(p, fmt.Errorf("%w: %s did not let go of the memory", kv.ErrTimeout, s.nearName))
		}
		return failed, abandoned
	}
	var shards []kv.Shard
	for _, r := range ready {
		shards = append(shards, s.wholeOf(r.key, s.place(buf, rest, r))...)
	}
	t, err := s.far.Save(s.ctx, shards)
	if err != nil {
		for _, p := range ready {
			retry(p, err)
		}
		return failed, false
	}
	errs := make([]error, len(ready))
	for i, err := range t.All() {
		b := i / s.layout.Shards()
		if err != nil && (errs[b] == nil || errors.Is(err, kv.ErrAbandoned)) {
			errs[b] = err
		}
	}
	for b, p := range ready {
		abandoned = abandoned || errors.Is(errs[b], kv.ErrAbandoned)
		switch {
		case errs[b] == nil:
			s.sent(p)
		case errors.Is(errs[b], kv.ErrConflict):
			s.giveUp(p, named(s.farName, errs[b]))
		default:
			retry(p, errs[b])
		}
	}
	return failed, abandoned
}

// place returns where in buf a parcel is.
func (s *Store) place(buf []byte, of []*parcel, p *parcel) []byte {
	for i := range of {
		if of[i] == p {
			return buf[int64(i)*s.layout.BlockBytes : int64(i+1)*s.layout.BlockBytes]
		}
	}
	return nil // p is one of them
}

// readBack reads blocks from the near store and returns those that it still has.
func (s *Store) readBack(some []*parcel, buf []byte) (ready []*parcel, abandoned bool) {
	var shards []kv.Shard
	for _, p := range some {
		shards = append(shards, s.wholeOf(p.key, s.place(buf, some, p))...)
	}
	t, err := s.near.Load(s.ctx, shards)
	errs := make([]error, len(some))
	for i := range errs {
		errs[i] = err
	}
	if err == nil {
		for i, err := range t.All() {
			b := i / s.layout.Shards()
			if err != nil && (errs[b] == nil || errors.Is(err, kv.ErrAbandoned)) {
				errs[b] = err
			}
		}
	}
	for b, p := range some {
		abandoned = abandoned || errors.Is(errs[b], kv.ErrAbandoned)
		if errs[b] != nil {
			s.giveUp(p, fmt.Errorf("%s does not have it any more: %w", s.nearName, errs[b]))
		} else {
			ready = append(ready, p)
		}
	}
	return ready, abandoned
}

// sent says that the far store has a block.
func (s *Store) sent(p *parcel) {
	s.unsent.mu.Lock()
	defer s.unsent.mu.Unlock()
	s.unsent.leave(p)
}

// giveUp says that a block will not get far.
func (s *Store) giveUp(p *parcel, err error) {
	s.unsent.mu.Lock()
	defer s.unsent.mu.Unlock()
	if p.left {
		return
	}
	if !p.deleted {
		s.loseLocked(err)
	}
	s.unsent.leave(p)
}

// failed puts a block back into the queue, and reports whether it did. After Close has begun
// it is given up.
func (s *Store) failed(p *parcel, err error) bool {
	u := s.unsent
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case p.left:
		return false
	case p.deleted:
		u.leave(p)
		return false
	case u.ended:
		s.loseLocked(err)
		u.leave(p)
		return false
	}
	p.sending, p.err = false, err
	p.fails++
	u.queue = append(u.queue, p)
	u.change()
	return true
}
