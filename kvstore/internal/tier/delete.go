package tier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Delete is kv.Store's. Blocks are also on their way between the two stores, where they
// would come back from:
//
//  1. What waits to be sent or kept is given up. What is being sent or kept just now is
//     waited for.
//  2. Both stores delete.
//  3. Loads from far that began before that keep nothing of these blocks.
//
// What may still be near after an error, and not far, is queued: else it would stay near alone, and no Flush would
// say so.
func (s *Store) Delete(ctx context.Context, keys []kv.Key) error {
	if err := s.group.Enter(); err != nil {
		return err
	}
	defer s.group.Leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	inner, cancel := s.group.With(ctx)
	defer cancel()
	moving := s.stopKeeping(keys)
	taken, sending := s.stopSending(keys)
	isNear := true // perhaps
	defer func() { s.keepAgain(keys, taken, isNear) }()
	if err := s.await(inner, append(moving, sending...)); err != nil {
		return s.group.Explain(err)
	}
	err := named(s.nearName, s.near.Delete(inner, keys))
	if isNear = err != nil; isNear {
		for key := range taken {
			taken[key] = true
		}
	} else {
		s.partials.drop(keys...)
	}
	if away := s.health.err(); away != nil {
		return errors.Join(err, fmt.Errorf("kvstore: blocks are not deleted in %s: %w", s.farName, away))
	}
	if isNear {
		for _, key := range keys {
			taken[key] = true
		}
	}
	far := s.far.Delete(inner, keys)
	s.health.note(far)
	return s.group.Explain(errors.Join(err, named(s.farName, far)))
}

// stopKeeping has these blocks not kept near until keepAgain, and returns events to wait for.
func (s *Store) stopKeeping(keys []kv.Key) (moving []<-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		s.deleting[key]++
		k := s.keeps[key]
		if k == nil {
			continue
		}
		k.dead = true
		switch {
		case k.state == storing:
			moving = append(moving, k.done)
		case k.state == gathering && k.copying == 0:
			s.drop(k, nil)
		}
	}
	return moving
}

// keepAgain ends what stopKeeping has begun. What was taken from the queue, or from the far store, and may be near, it
// queues when the last Delete of the block ends; true is what is perhaps not near either.
func (s *Store) keepAgain(keys []kv.Key, taken map[kv.Key]bool, isNear bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isNear {
		for key, unsure := range taken {
			s.owed[key] = s.owed[key] || unsure
		}
	} else {
		for _, key := range keys {
			delete(s.owed, key)
		}
	}
	for r := range s.reading {
		for _, key := range keys {
			r.forgotten[key] = true
		}
	}
	for d := range s.saving {
		for _, key := range keys {
			d.deleted[key] = true
		}
	}
	for _, key := range keys {
		if s.deleting[key]--; s.deleting[key] > 0 {
			continue
		}
		delete(s.deleting, key)
		if unsure, is := s.owed[key]; is {
			delete(s.owed, key)
			s.unsent.putBack(key, unsure) // before another Delete can begin
		}
	}
}

// stopSending takes these blocks out of the queue. It returns those that were in it, with true if that was unsure, and
// events to wait for.
func (s *Store) stopSending(keys []kv.Key) (taken map[kv.Key]bool, moving []<-chan struct{}) {
	u := s.unsent
	taken = map[kv.Key]bool{}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, key := range keys {
		p := u.all[key]
		if p == nil {
			continue
		}
		taken[key] = p.unsure
		switch {
		case p.sending:
			p.deleted = true
			delete(u.all, key) // a Save from now on queues another
			moving = append(moving, p.done)
		default:
			u.leave(p)
		}
	}
	u.compact()
	return taken, moving
}

// await waits for events, each for at most the timeout.
func (s *Store) await(ctx context.Context, events []<-chan struct{}) error {
	for _, event := range events {
		timer := time.NewTimer(s.o.Timeout)
		select {
		case <-event:
		case <-timer.C:
			return fmt.Errorf("%w: a block on its way between %s and %s cannot be deleted", kv.ErrTimeout, s.nearName, s.farName)
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
	return nil
}
