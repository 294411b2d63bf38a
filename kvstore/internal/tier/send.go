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
	mostLost      = 16       // buffers that a storage may still use; then nothing is sent

	retryAfter, retryMost = time.Second, 30 * time.Second
)

// sendAtOnce returns how many blocks a sender sends at once, at most.
func (s *Store) sendAtOnce() int {
	return int(min(sendAtOnce, max(1, sendBytesOnce/s.layout.BlockBytes)))
}

// sender is a goroutine that sends blocks to the far store.
func (s *Store) sender() {
	for {
		some, ok := s.nextUnsent(s.sendAtOnce())
		if !ok {
			return
		}
		a, began := &attempt{s: s}, time.Now()
		buf, _ := s.outgoing.try()
		a.send(some, buf)
		if buf != nil {
			s.outgoing.put(buf, a.abandoned)
		}
		s.unsent.tried(began, a.sent, a.err)
	}
}

// nextUnsent waits for blocks to send, and for the far store to answer.
func (s *Store) nextUnsent(most int) (some []*parcel, ok bool) {
	u := s.unsent
	for {
		healthy, away := s.health.change(), s.health.err()
		wait := time.Duration(-1)
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
			some, wait = u.take(most)
		}
		ended, changed := u.ended && len(u.queue) == 0, u.changed
		s.unlockUnsent()
		switch {
		case len(some) > 0:
			return some, true
		case ended:
			return nil, false
		}
		var again <-chan time.Time
		if wait >= 0 {
			again = time.After(wait)
		}
		select {
		case <-again:
		case <-changed:
		case <-healthy:
		case <-s.ctx.Done():
			return nil, false
		}
	}
}

// attempt is one to send some blocks.
type attempt struct {
	s         *Store
	sent      bool  // one at least
	err       error // why the far store has not taken another
	abandoned error // a storage may still use the memory
}

// send sends blocks that the far store does not have.
func (a *attempt) send(some []*parcel, buf []byte) {
	s := a.s
	keys := make([]kv.Key, len(some))
	for i, p := range some {
		keys[i] = p.key
	}
	found := make([]bool, len(keys))
	if err := s.far.Lookup(s.ctx, keys, found); err != nil {
		if s.ctx.Err() != nil || errors.Is(err, kv.ErrClosed) || kv.IsAway(err) {
			a.refused(err, some...)
			return
		}
		clear(found) // one that cannot be looked up is not to keep the others; saving what is there changes nothing
	}
	var rest []*parcel
	for i, p := range some {
		if found[i] {
			a.arrived(p)
		} else {
			rest = append(rest, p)
		}
	}
	if len(rest) == 0 {
		return
	}
	if buf == nil {
		for _, p := range rest {
			s.failed(p, errNoMemory) // which says nothing of the far store
		}
		return
	}
	ready := a.readBack(rest, buf)
	if a.abandoned != nil || len(ready) == 0 {
		for _, p := range ready {
			s.failed(p, fmt.Errorf("%w: %s did not let go of the memory", kv.ErrTimeout, s.nearName))
		}
		return
	}
	var shards []kv.Shard
	for _, r := range ready {
		shards = append(shards, s.wholeOf(r.key, s.place(buf, rest, r))...)
	}
	t, err := s.far.Save(s.ctx, shards)
	if err != nil {
		a.refused(err, ready...)
		return
	}
	errs := s.byBlock(t, len(ready))
	for b, p := range ready {
		switch {
		case errs[b] == nil:
			a.arrived(p)
		case errors.Is(errs[b], kv.ErrConflict):
			s.giveUp(p, named(s.farName, errs[b]))
		default:
			a.refused(errs[b], p)
		}
	}
}

// byBlock waits for a task of whole blocks and returns the worst error of each: that a buffer may still be
// in use.
func (s *Store) byBlock(t *kv.Task, blocks int) []error {
	errs := make([]error, blocks)
	for i, err := range t.All() {
		b := i / s.layout.Shards()
		if err != nil && (errs[b] == nil || errors.Is(err, kv.ErrAbandoned)) {
			errs[b] = err
		}
	}
	return errs
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

// readBack reads blocks from the near store and returns those that it could read. It gives up those that are
// not there any more; others are tried again.
func (a *attempt) readBack(some []*parcel, buf []byte) (ready []*parcel) {
	s := a.s
	var shards []kv.Shard
	for _, p := range some {
		shards = append(shards, s.wholeOf(p.key, s.place(buf, some, p))...)
	}
	t, err := s.near.Load(s.ctx, shards)
	if err != nil {
		for _, p := range some {
			s.failed(p, named(s.nearName, err))
		}
		return nil
	}
	errs := s.byBlock(t, len(some))
	for b, p := range some {
		switch err := errs[b]; {
		case err == nil:
			ready = append(ready, p)
		case errors.Is(err, kv.ErrMiss):
			s.giveUp(p, fmt.Errorf("%s does not have it any more: %w", s.nearName, err))
		default:
			if errors.Is(err, kv.ErrAbandoned) {
				a.abandoned = err
			}
			s.failed(p, named(s.nearName, err))
		}
	}
	return ready
}

// arrived says that the far store has a block.
func (a *attempt) arrived(p *parcel) {
	a.sent = true
	a.s.health.sent(p.key)
	u := a.s.unsent
	u.mu.Lock()
	defer u.mu.Unlock()
	u.end(p)
}

// refused says that the far store has not taken blocks.
func (a *attempt) refused(err error, some ...*parcel) {
	a.s.health.note(err)
	err = named(a.s.farName, err)
	if errors.Is(err, kv.ErrAbandoned) {
		a.abandoned = err
	}
	if a.err == nil {
		a.err = err
	}
	for _, p := range some {
		a.s.failed(p, err)
	}
}

// giveUp says that a block will not get far.
func (s *Store) giveUp(p *parcel, err error) {
	u := s.unsent
	u.mu.Lock()
	defer s.unlockUnsent()
	if !p.left && u.end(p) && !p.deleted && !p.unsure {
		s.loseLocked(err)
	}
}

// failed puts a block back into the queue. After Close has begun it is given up.
func (s *Store) failed(p *parcel, err error) {
	u := s.unsent
	u.mu.Lock()
	defer s.unlockUnsent()
	switch {
	case p.left:
		return
	case p.deleted:
		u.leave(p)
		return
	case u.ended:
		s.loseLocked(err)
		u.leave(p)
		return
	}
	p.sending, p.err = false, err
	p.fails++
	p.after = time.Now().Add(min(retryAfter<<min(p.fails-1, 10), retryMost))
	u.queue = append(u.queue, p)
	u.change()
}
