package tier

import (
	"context"
	"errors"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// saving is a batch of Save.
type saving struct {
	*batch.Batch
	s        *Store
	patience patience        // with the queue
	deleted  map[kv.Key]bool // Deletes of these have ended meanwhile; guarded by Store.mu
}

// Save is kv.Store's.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	b, err := s.group.Begin(ctx, batch.Save, shards, s.saves)
	if err != nil {
		return nil, err
	}
	d := &saving{Batch: b, s: s}
	if s.o.WriteThrough {
		s.group.Go(d.through)
	} else {
		s.group.Go(d.nearFirst)
	}
	return b.Task, nil
}

// blockPart is the shards of one block in a batch.
type blockPart struct {
	key   kv.Key
	which []int
	left  int
	saved []int // indexes of shards that the near store has taken
	err   error
	whole bool // the batch has all shards of the block
	owed  bool // the far store has not all of them
}

func (d *saving) parts() (of []*blockPart) {
	byKey := map[kv.Key]*blockPart{}
	of = make([]*blockPart, d.Len())
	for i := range of {
		key := d.Shard(i).Key
		p := byKey[key]
		if p == nil {
			p = &blockPart{key: key}
			byKey[key] = p
		}
		p.which = append(p.which, i)
		of[i] = p
	}
	for _, p := range byKey {
		distinct := map[int]bool{}
		for _, i := range p.which {
			distinct[d.Shard(i).Index] = true
		}
		p.left, p.whole = len(p.which), len(distinct) == d.s.layout.Shards()
	}
	return of
}

// all returns the shards of the batch.
func (d *saving) all() []kv.Shard {
	shards := make([]kv.Shard, d.Len())
	for i := range shards {
		shards[i] = d.Shard(i)
	}
	return shards
}

// nearFirst saves to the near store, and has whole blocks sent to the far one.
func (d *saving) nearFirst() {
	s := d.s
	s.saveBegins(d)
	defer s.saveEnds(d)
	t, err := s.near.Save(d.Context(), d.all())
	if err != nil {
		for i := range d.Len() {
			d.Settle(i, named(s.nearName, err))
		}
		return
	}
	of := d.parts()
	var direct []int
	for i, err := range t.All() {
		p := of[i]
		p.note(d.Shard(i).Index, err)
		p.owed = true
		if p.left--; p.left > 0 {
			continue
		}
		if is, unsure := d.completes(p); is {
			s.send(d, p.key, unsure)
		}
		switch {
		case p.err == nil:
			d.SettleAll(p.which, nil)
		case p.whole && d.Ended() == nil && s.farMayTake(p.err):
			direct = append(direct, p.which...)
		default:
			d.SettleAll(p.which, named(s.nearName, p.err))
		}
	}
	if len(direct) > 0 {
		d.direct(direct)
	}
}

func (s *Store) saveBegins(d *saving) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.deleted = map[kv.Key]bool{}
	s.saving[d] = true
}

func (s *Store) saveEnds(d *saving) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.saving, d)
}

// note says how the near store has saved a shard of the part.
func (p *blockPart) note(index int, err error) {
	switch {
	case err == nil:
		p.saved = append(p.saved, index)
	case p.err == nil || errors.Is(err, kv.ErrAbandoned):
		p.err = err
	}
}

// completes reports whether the near store has all of a block with this part, or had it before, and the far store does
// not; unsure, that this may be so. A part of it that was refused changes nothing of what came before.
func (d *saving) completes(p *blockPart) (is, unsure bool) {
	s := d.s
	if p.whole || errors.Is(p.err, kv.ErrConflict) { // the near store has begun anew
		s.partials.drop(p.key)
		return p.err == nil && p.owed, false
	}
	all, owed := s.partials.saved(p.key, p.saved, p.owed)
	if all || !owed || len(p.saved) == 0 {
		return all && owed, false
	}
	found := make([]bool, 1)
	err := s.near.Lookup(s.ctx, []kv.Key{p.key}, found)
	return found[0] || err != nil, err != nil
}

// farMayTake reports whether a block that the near store has not taken can go to the far one.
func (s *Store) farMayTake(err error) bool {
	return !errors.Is(err, kv.ErrConflict) && !errors.Is(err, kv.ErrAbandoned) && !errors.Is(err, kv.ErrClosed) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && s.health.err() == nil
}

// direct saves whole blocks to the far store, because the near one could not take them.
func (d *saving) direct(which []int) {
	s := d.s
	shards := make([]kv.Shard, len(which))
	for n, i := range which {
		shards[n] = d.Shard(i)
	}
	t, err := s.far.Save(d.Context(), shards)
	if err != nil {
		s.health.note(err)
		d.SettleAll(which, named(s.farName, err))
		return
	}
	for n, err := range t.All() {
		s.health.note(err)
		d.Settle(which[n], named(s.farName, err))
	}
}

// through saves to both stores. The far one decides. A block that it has not taken may be near nevertheless,
// where this host finds it: so it is sent later.
func (d *saving) through() {
	s := d.s
	s.saveBegins(d)
	defer s.saveEnds(d)
	near, nearErr := s.near.Save(d.Context(), d.all())
	farErr := s.health.err()
	var far *kv.Task
	if farErr == nil {
		if far, farErr = s.far.Save(d.Context(), d.all()); farErr != nil {
			s.health.note(farErr)
		}
	}
	errs := make([]error, d.Len())
	of := d.parts()
	if nearErr == nil {
		for i, err := range near.All() {
			if errors.Is(err, kv.ErrAbandoned) {
				errs[i] = named(s.nearName, err)
			}
			of[i].note(d.Shard(i).Index, err)
		}
	}
	settle := func(i int, err error) {
		p := of[i]
		p.owed = p.owed || err != nil && !errors.Is(err, kv.ErrConflict)
		if p.left--; p.left == 0 && nearErr == nil {
			if is, _ := d.completes(p); is {
				s.sendLater(d, p.key)
			}
		}
		d.Settle(i, worst(errs[i], named(s.farName, err)))
	}
	if farErr != nil {
		for i := range errs {
			settle(i, farErr)
		}
		return
	}
	for i, err := range far.All() {
		s.health.note(err)
		settle(i, err)
	}
}

// worst returns the first error that says that a buffer is still in use, or else the second.
func worst(abandoned, err error) error {
	if abandoned != nil {
		return abandoned
	}
	return err
}
