package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const (
	writers        = 2        // batches that are written to next at once
	writeAtOnce    = 32       // blocks of each, at most
	writeBytesOnce = 64 << 20 // and bytes, about
)

// dirtyBlock is a block that is to be written to next.
type dirtyBlock struct {
	key  kv.Key
	slot int32
	gen  uint32

	// Guarded by the store's lock.
	taken bool // by a writer: next may be storing it
	done  bool
	await []chan<- error // of saves that wait for next; each has a place for the outcome
}

// writeBehind holds the blocks that are to be written to next. The store's lock guards
// it. Its context is kept because the writing goes on after Close has begun.
type writeBehind struct {
	ctx    context.Context // ends with Close: a write outlives the Save that queued it
	cancel context.CancelFunc
	wg     sync.WaitGroup

	more    sync.Cond
	queue   []*dirtyBlock
	all     map[int32]*dirtyBlock // by slot: queued, or being written
	changed chan struct{}         // closed and replaced when one is done
	ended   bool
	failed  int   // blocks that next did not take, since the last report
	why     error // of the first of these
}

func (w *writeBehind) init(mu *sync.Mutex) {
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.more.L = mu
	w.all = map[int32]*dirtyBlock{}
	w.changed = make(chan struct{})
}

func (w *writeBehind) add(d *dirtyBlock) {
	w.queue = append(w.queue, d)
	w.all[d.slot] = d
	w.more.Signal()
}

// writer is a goroutine that writes dirty blocks to next.
func (s *Store) writer() {
	most := int(min(writeAtOnce, max(1, writeBytesOnce/s.layout.BlockBytes)))
	for {
		blocks, ok := s.nextDirty(most)
		if !ok {
			return
		}
		if len(blocks) == 0 {
			time.Sleep(lookAgain) // nothing was there, or the table could not be locked
			continue
		}
		s.writeBlocks(blocks)
	}
}

// nextDirty waits for blocks to write, and pins them. It returns false when the store is
// closed and everything is written.
func (s *Store) nextDirty(most int) (pinned []*dirtyBlock, ok bool) {
	w := &s.write
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(w.queue) == 0 {
		if w.ended {
			return nil, false
		}
		w.more.Wait()
	}
	n := min(most, len(w.queue))
	taken := without(w.queue[:n:n], func(d *dirtyBlock) bool { return d.done }) // deleted
	w.queue = w.queue[n:]
	var lost, deleted []*dirtyBlock
	err := s.do(func() {
		for _, d := range taken {
			switch h := s.table.Head(d.slot); {
			case h.State != table.Dirty || !h.Mine || h.Gen != d.gen:
				lost = append(lost, d)
			case h.Doomed:
				s.table.Become(d.slot, table.Free)
				deleted = append(deleted, d)
			default:
				s.pin(d.slot)
				d.taken = true
				pinned = append(pinned, d)
			}
		}
	})
	if err != nil && !errors.Is(err, table.ErrBroken) && !w.ended {
		w.queue = append(w.queue, taken...)
		return nil, true
	}
	if err != nil {
		lost, deleted, pinned = taken, nil, nil
	}
	for _, d := range deleted {
		s.finish(d, nil)
	}
	for _, d := range lost {
		s.finish(d, errors.Join(errLost, err))
	}
	return pinned, true
}

// errLost means that a block was damaged in memory, or that the memory is gone.
var errLost = errors.New("kvstore: cache: the block was lost before it was written")

// writeBlocks writes pinned blocks to next.
func (s *Store) writeBlocks(blocks []*dirtyBlock) {
	n := s.layout.Shards()
	shards := make([]kv.Shard, 0, len(blocks)*n)
	sound := blocks[:0]
	for _, d := range blocks {
		if s.table.Shared() && !s.sound(d) {
			s.written(d, errLost)
			continue
		}
		sound = append(sound, d)
		for i := range n {
			shards = append(shards, kv.Shard{Key: d.key, Index: i, Buf: s.table.Shard(d.slot, i)})
		}
	}
	if len(sound) == 0 {
		return
	}
	t, err := s.next.Save(s.write.ctx, shards)
	if err != nil {
		for _, d := range sound {
			s.written(d, err)
		}
		return
	}
	left, errs := make([]int, len(sound)), make([]error, len(sound))
	for i, err := range t.All() {
		b := i / n
		if left[b]++; err != nil && (errs[b] == nil || errors.Is(err, kv.ErrAbandoned)) {
			errs[b] = err
		}
		if left[b] == n {
			s.written(sound[b], errs[b])
		}
	}
}

// sound reports whether the bytes of a block in shared memory are still those that were
// saved. Next would record a checksum of its own for whatever they are.
func (s *Store) sound(d *dirtyBlock) bool {
	for i := range s.layout.Shards() {
		if _, err := s.table.Read(nil, d.slot, d.key, i); err != nil {
			if errors.Is(err, table.ErrDamaged) {
				s.damaged(d.key, d.slot)
			}
			return false
		}
	}
	return true
}

// written handles the outcome of writing a pinned block.
func (s *Store) written(d *dirtyBlock, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table.Broken() && err == nil {
		err = errLost // next may have read other memory
	}
	s.settle(func() {
		h := s.table.Head(d.slot)
		if h.State != table.Dirty || !h.Mine || h.Gen != d.gen {
			return
		}
		switch {
		case h.Doomed:
			s.table.Become(d.slot, table.Free)
		case err == nil:
			s.table.Become(d.slot, table.Clean)
		default:
			s.table.Become(d.slot, table.Unsaved)
		}
	})
	if !errors.Is(err, kv.ErrAbandoned) { // else next's storage reads from the slot still
		s.unpin([]int32{d.slot})
	}
	s.finish(d, err)
}

// finish ends the writing of a block. The lock is held.
func (s *Store) finish(d *dirtyBlock, err error) {
	w := &s.write
	d.done = true
	if w.all[d.slot] == d {
		delete(w.all, d.slot)
	}
	if err != nil {
		s.count.DroppedBlocks.Add(1)
		w.fail(err)
	}
	for _, outcome := range d.await {
		outcome <- err
	}
	close(w.changed)
	w.changed = make(chan struct{})
	s.spaceChanged()
}

// fail notes a block that next did not take. The lock is held.
func (w *writeBehind) fail(err error) {
	w.failed++
	if w.why == nil {
		w.why = err
	}
}

// report returns an error that says how many blocks next did not take since the last
// report. The lock is held.
func (w *writeBehind) report() error {
	if w.failed == 0 {
		return nil
	}
	err := fmt.Errorf("kvstore: cache: %d blocks did not reach the next store; of the first: %w", w.failed, w.why)
	w.failed, w.why = 0, nil
	return err
}

// Flush waits until the blocks that are dirty now are written, including those of other
// processes that share the cache, and then flushes next.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.group.Enter(); err != nil {
		return err
	}
	defer s.group.Leave()
	if err := s.flushDirty(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	err := s.write.report()
	s.mu.Unlock()
	return errors.Join(err, s.callNext(ctx, s.next.Flush))
}

// flushDirty waits for all blocks that are dirty now.
func (s *Store) flushDirty(ctx context.Context) error {
	s.mu.Lock()
	var own []*dirtyBlock
	for _, d := range s.write.all {
		own = append(own, d)
	}
	var others map[int32]uint32
	var err error
	if s.table.Shared() {
		err = s.do(func() { others = s.table.DirtyOfOthers() })
	}
	s.mu.Unlock()
	if err != nil && !errors.Is(err, table.ErrBroken) {
		return fmt.Errorf("kvstore: cache: cannot see which blocks other processes have yet to write: %w: %w", err, kv.ErrTimeout)
	}
	return s.waitWritten(ctx, own, others)
}

// waitWritten waits until next has these blocks, or has not taken them. Of those of other
// processes it knows slots and generations. It gives up when nothing is written for the
// store's timeout.
func (s *Store) waitWritten(ctx context.Context, own []*dirtyBlock, others map[int32]uint32) error {
	timer := time.NewTimer(s.o.Timeout)
	defer timer.Stop()
	for before := len(own) + len(others); ; {
		s.mu.Lock()
		own = without(own, func(d *dirtyBlock) bool { return d.done })
		s.checkOthers(others)
		changed := s.write.changed
		s.mu.Unlock()
		now := len(own) + len(others)
		if now == 0 {
			return nil
		}
		if now < before {
			before = now
			timer.Reset(s.o.Timeout)
		}
		var look <-chan time.Time
		if len(others) > 0 {
			look = time.After(lookAgain)
		}
		select {
		case <-changed:
		case <-look:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.group.Closing().Done():
			return kv.ErrClosed
		case <-timer.C:
			return fmt.Errorf("kvstore: cache: %d blocks are not in the next store, and none has got there for %v: %w", now, s.o.Timeout, kv.ErrTimeout)
		}
	}
}

// without removes elements in place.
func without(all []*dirtyBlock, gone func(*dirtyBlock) bool) []*dirtyBlock {
	left := all[:0]
	for _, d := range all {
		if !gone(d) {
			left = append(left, d)
		}
	}
	return left
}

// checkOthers removes what other processes have written. The lock is held.
func (s *Store) checkOthers(others map[int32]uint32) {
	if len(others) == 0 {
		return
	}
	err := s.do(func() {
		for slot, gen := range others {
			h := s.table.Head(slot)
			if h.Gen == gen && h.State == table.Dirty {
				continue
			}
			delete(others, slot)
			if h.Gen == gen && h.State == table.Unsaved {
				s.write.fail(errOther)
			}
		}
	})
	if errors.Is(err, table.ErrBroken) {
		for range others {
			s.write.fail(errLost)
		}
		clear(others)
	}
}

var errOther = errors.New("another process could not write it")
