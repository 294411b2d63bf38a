package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// slotRef is the slot in which a block that is being saved is assembled.
type slotRef struct{ slot int32 }

type unfinished = assembly.Block[slotRef]

// saving is a batch of Save.
type saving struct {
	*batch.Batch
	s      *Store
	writer *assembly.Writer
	blocks []*unfinished // by shard

	// Guarded by the planner's lock.
	staged map[int32]stagedShard // shards of a device's memory whose bytes were fetched to be compared

	// Used by the planner alone.
	verdicts map[kv.Key]error // of blocks that need no slot, or get none
	called   time.Time
	direct   []int32         // shards that go directly to next
	space    <-chan struct{} // from the last attempt: closed when there may be space
}

// Why a shard is not put into a slot.
var (
	errExists  = errors.New("the block is there already")
	errDirect  = errors.New("the block goes directly to next")
	errNoSpace = errors.New("no space now")
	errLoading = errors.New("the block is being loaded from next")
)

// planner is the queue of planSaves, the goroutine that plans saves.
type planner struct {
	mu      sync.Mutex
	batches []*saving
	again   []retry
	more    chan struct{} // holds a token when there is something

	// Used by its goroutine only:
	placed time.Time // when it last got a slot
	behind bool      // others wait for space, so what is planned now must not take any
}

// stretch is shards of a batch that are to be planned.
type stretch struct {
	d         *saving
	next, end int
}

// retry is a shard to be tried again, because the state of its block has changed.
type retry struct {
	d *saving
	i int
}

// Save copies the shards in the background.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	b, err := s.group.Begin(ctx, batch.Save, shards, s.saves)
	if err != nil {
		return nil, err
	}
	d := &saving{
		Batch: b, s: s, called: time.Now(),
		writer:   assembly.WriterOf(b.Context(), s.layout, shards),
		blocks:   make([]*unfinished, len(shards)),
		verdicts: map[kv.Key]error{},
	}
	s.planner.put(func(q *planner) { q.batches = append(q.batches, d) })
	return b.Task, nil
}

func (q *planner) init() { q.more = make(chan struct{}, 1) }

func (q *planner) put(add func(*planner)) {
	q.mu.Lock()
	add(q)
	q.mu.Unlock()
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// next returns everything that is to be tried again, or else the next batch.
func (q *planner) next() (again []retry, d *saving) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.again) > 0 {
		again, q.again = q.again, nil
		return again, nil
	}
	if len(q.batches) > 0 {
		d, q.batches[0] = q.batches[0], nil
		q.batches = q.batches[1:]
	}
	return nil, d
}

// planSaves is the planner's goroutine. A batch that needs a slot when there is none waits,
// and lets pass those behind it that need none.
func (s *Store) planSaves() {
	var short []*stretch // what waits for space, in the order in which it came
	for {
		space, patience := s.untilSpace(short)
		select {
		case <-s.planner.more:
		case <-space:
		case <-patience.C:
		case <-s.ended:
			patience.Stop()
			return
		}
		patience.Stop()
		short = s.planShort(short)
		for {
			again, d := s.planner.next()
			if d == nil && len(again) == 0 {
				break
			}
			short = s.planNew(short, again, d)
		}
	}
}

// planNew plans what has come, and adds what has to wait for space to what does already.
func (s *Store) planNew(short []*stretch, again []retry, d *saving) []*stretch {
	var some []*stretch
	for _, r := range again {
		some = append(some, &stretch{r.d, r.i, r.i + 1})
	}
	if d != nil {
		some = append(some, &stretch{d, 0, d.Len()})
	}
	for _, w := range some {
		if !s.plan(w, len(short) > 0) {
			short = append(short, w)
			context.AfterFunc(w.d.Context(), func() { s.planner.put(func(*planner) {}) })
		}
	}
	for _, w := range some { // together: next is to see that a block is whole
		w.d.saveDirect()
	}
	return short
}

// planShort plans what waits for space, as long as there is some, and what is not to wait
// any longer. It returns what still waits.
func (s *Store) planShort(short []*stretch) (left []*stretch) {
	for _, w := range short {
		first := len(left) == 0
		if !first && w.d.Ended() == nil && s.patience(w.d) > 0 || !s.plan(w, !first) {
			left = append(left, w)
		}
	}
	for _, w := range short {
		w.d.saveDirect()
	}
	return left
}

// plan plans the shards of a stretch in order, and reports whether it got to the end. Behind
// others that wait for space it takes none.
func (s *Store) plan(w *stretch, behind bool) bool {
	s.planner.behind = behind
	for ; w.next < w.end; w.next++ {
		if !s.place(w.d, w.next) {
			return false
		}
	}
	return true
}

// untilSpace returns what to wait for: a signal that there may be space, and a timer for
// what has waited long enough.
func (s *Store) untilSpace(short []*stretch) (space <-chan struct{}, patience *time.Timer) {
	if len(short) == 0 {
		patience = time.NewTimer(time.Hour)
		patience.Stop()
		return nil, patience
	}
	left := s.o.Timeout
	for _, w := range short {
		left = min(left, s.patience(w.d))
	}
	if s.table.Shared() {
		left = min(left, lookAgain) // other processes do not say when they free a slot
	}
	return short[0].d.space, time.NewTimer(left)
}

// patience is how much longer a batch waits for space. When no block has found any for the
// store's timeout, all batches that have waited so long give up together: one after the
// other they would take many times the timeout.
func (s *Store) patience(d *saving) time.Duration {
	since := d.called
	if s.planner.placed.After(since) {
		since = s.planner.placed
	}
	return s.o.Timeout - time.Since(since)
}

// place finds a slot for a shard and has the shard copied. It reports false if the shard
// has to wait for space.
func (s *Store) place(d *saving, i int) bool {
	shard := d.Shard(i)
	again := func() { s.planner.put(func(q *planner) { q.again = append(q.again, retry{d, i}) }) }
	if shard.Device != nil {
		staged := s.planner.takeStaged(d, i)
		defer staged.release()
		shard.Buf = staged.buf
	}
	if err := d.Ended(); err != nil {
		d.Settle(i, err)
		return true
	}
	verdict, known := d.verdicts[shard.Key]
	if !known {
		block, what, err := s.blocks.Enter(d.writer, shard,
			func() (slotRef, error) { return s.openBlock(d, shard.Key, again) }, again)
		switch {
		case err != nil:
			if block != nil {
				s.giveUp(block)
			}
			verdict = err
		case what == assembly.Write:
			d.blocks[i] = block
			s.copying.Add(1)
			s.copiers.EachBulk(d, i, i+1, s.grain)
			return true
		case what == assembly.Have:
			d.Settle(i, nil)
			return true
		case what == assembly.Later:
			return true
		case what == assembly.Compare:
			d.stage(i, again)
			return true
		}
	}
	switch {
	case verdict == errLoading:
		return true
	case verdict == errNoSpace && s.patience(d) > 0:
		return false
	case verdict == errNoSpace:
		verdict = kv.ErrFull
	}
	d.verdicts[shard.Key] = verdict
	switch verdict {
	case errExists:
		d.settleWritten(i, nil, s.awaitKey(shard.Key))
	case errDirect:
		d.direct = append(d.direct, int32(i))
	default:
		d.Settle(i, verdict)
	}
	return true
}

// openBlock claims a slot for a block whose first shard is saved, or returns why not. For
// a block that is being loaded, again is called when the loading has ended.
func (s *Store) openBlock(d *saving, key kv.Key, again func()) (ref slotRef, verdict error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.direct[key]; ok {
		s.direct[key] = time.Now()
		return ref, errDirect
	}
	if err := s.do(func() { ref.slot, verdict = s.openSlot(key, again) }); err != nil {
		verdict = errDirect
	}
	switch verdict {
	case errDirect:
		// The rest of the block has to go there, too.
		s.direct[key] = time.Now()
	case errNoSpace:
		if s.space == nil {
			s.space = make(chan struct{})
		}
		d.space = s.space
	}
	return ref, verdict
}

// openSlot claims the slot, if it can. The lock and the table are held.
func (s *Store) openSlot(key kv.Key, again func()) (int32, error) {
	slot, ok := s.table.Find(key)
	now := table.Now()
	if ok {
		switch h := s.table.Head(slot); h.State {
		case table.Clean, table.Dirty:
			s.table.Touch(slot, now)
			return 0, errExists
		case table.Unsaved:
			s.table.Become(slot, table.Dirty)
			s.write.add(&dirtyBlock{key: key, slot: slot, gen: h.Gen})
			return 0, errExists
		case table.Partial:
			// The shards that were loaded may be those of another variant of the block.
			s.table.Become(slot, table.Free)
		case table.Loading:
			if f := s.fillings[slot]; f != nil && h.Mine {
				f.after = append(f.after, again)
				return 0, errLoading
			}
			return 0, errDirect
		default:
			return 0, errDirect
		}
	}
	if s.planner.behind {
		return 0, errNoSpace
	}
	// Waiting helps only while something under way will free a slot. Otherwise only
	// other saves could, and they may be queued behind this one.
	dirty := len(s.write.all)
	wait := dirty > 0 || s.copying.Load() > 0
	if s.assembling+dirty < s.dirtyLimit() && dirty < s.o.WaitingQueueDepth {
		if slot, ok = s.alloc(); ok {
			s.table.Claim(slot, key, table.Saving, table.NewVersion(), now)
			s.assembling++
			s.planner.placed = time.Now()
			return slot, nil
		}
		wait = wait || s.pinned > 0 || len(s.fillings) > 0 || s.table.Others()
	}
	if wait {
		return 0, errNoSpace
	}
	return 0, errDirect
}

// dirtyLimit is how many slots saves may take; the others are left to loads.
func (s *Store) dirtyLimit() int { return s.table.Slots() - s.table.Slots()/4 }

// lookAgain is the interval for polling what other processes do.
const lookAgain = 5 * time.Millisecond

// Do copies a shard into its block.
func (d *saving) Do(i int) {
	shard, block := d.Shard(i), d.blocks[i]
	err := d.Ended()
	if err == nil {
		err = d.s.checkClear(block)
	}
	if err == nil && shard.Device != nil {
		d.fetch(i)
		return
	}
	if err == nil {
		block.Sums[shard.Index], err = d.write(block.Payload.slot, shard)
	}
	d.wrote(i, err)
}

// wrote ends the writing of a shard into its block.
func (d *saving) wrote(i int, err error) {
	s, shard, block := d.s, d.Shard(i), d.blocks[i]
	var written <-chan error
	if err != nil {
		if s.blocks.Failed(block, shard.Index) {
			s.giveUp(block)
		} else {
			s.giveUpUnclear(block)
		}
	} else {
		outcome := s.blocks.Written(block, shard.Index)
		switch outcome {
		case assembly.Whole:
			written = s.whole(block)
		case assembly.Dead:
			s.giveUp(block)
		}
		err = outcome.Err(block.Key)
	}
	if s.copying.Add(-1) == 0 {
		s.mu.Lock()
		s.spaceChanged()
		s.mu.Unlock()
	}
	d.settleWritten(i, err, written)
}

// settleWritten settles a shard, and where it is to wait for next, with next's error.
func (d *saving) settleWritten(i int, err error, written <-chan error) {
	if written == nil {
		d.Settle(i, err)
		return
	}
	d.s.group.Go(func() {
		select {
		case err = <-written:
		case <-d.Context().Done():
			err = d.Ended()
		}
		if errors.Is(err, kv.ErrAbandoned) { // it is a slot that is in use, not the caller's buffer
			err = fmt.Errorf("%w: %v", kv.ErrTimeout, err)
		}
		d.Settle(i, err)
	})
}

// write copies a shard into a slot. Without checksums nothing computes that of a shard but
// the comparison of writers, which the parts of blocks need.
func (d *saving) write(slot int32, shard kv.Shard) (sum uint64, err error) {
	sum, err = d.s.table.Write(slot, shard.Key, shard.Index, shard.Buf)
	if d.s.o.Checksums == kv.ChecksumsOff && !d.writer.Owns(shard.Key) {
		sum = table.Sum(shard)
	}
	return sum, err
}

// whole makes a complete block visible and queues it for next. Where saves wait for that, it
// returns a channel for the outcome.
func (s *Store) whole(block *unfinished) (written <-chan error) {
	s.mu.Lock()
	s.assembling--
	d := &dirtyBlock{key: block.Key, slot: block.Payload.slot}
	s.settle(func() {
		s.table.Become(d.slot, table.Dirty)
		d.gen = s.table.Head(d.slot).Gen
	})
	s.write.add(d)
	written = s.await(d)
	s.mu.Unlock()
	s.blocks.Finish(block)
	return written
}

// await returns a channel for the outcome of writing a block, nil where nobody is to wait for
// it. The lock is held.
func (s *Store) await(d *dirtyBlock) <-chan error {
	if !s.o.WriteThrough {
		return nil
	}
	written := make(chan error, 1)
	d.await = append(d.await, written)
	return written
}

// awaitKey is await for a block that is in memory; there is nothing to wait for if next has it.
func (s *Store) awaitKey(key kv.Key) (written <-chan error) {
	if !s.o.WriteThrough {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.do(func() { // what cannot be found now is not waited for
		if slot, ok := s.table.Find(key); ok {
			if d := s.write.all[slot]; d != nil && d.gen == s.table.Head(slot).Gen {
				written = s.await(d)
			}
		}
	})
	return written
}

// giveUp drops a block that will not become whole.
func (s *Store) giveUp(block *unfinished) {
	s.mu.Lock()
	s.assembling--
	s.settle(func() { s.table.Become(block.Payload.slot, s.afterSaving(block.Payload.slot)) })
	s.spaceChanged()
	s.mu.Unlock()
	s.blocks.Finish(block)
}

// expire gives up blocks that have not received a shard for so long.
func (s *Store) expire(idle time.Duration) {
	for _, block := range s.blocks.Expire(idle) {
		s.giveUp(block)
		s.count.DroppedBlocks.Add(1)
	}
}

// saveDirect saves directly to next the shards that got no slot.
func (d *saving) saveDirect() {
	which := d.saveStaged(d.direct)
	d.direct = nil
	if len(which) == 0 {
		return
	}
	d.s.group.Go(func() {
		shards := make([]kv.Shard, len(which))
		for n, i := range which {
			shards[n] = d.Shard(int(i))
		}
		t, err := d.s.next.Save(d.Context(), shards)
		if err != nil {
			for _, i := range which {
				d.Settle(int(i), err)
			}
			return
		}
		for n, err := range t.All() {
			d.Settle(int(which[n]), err)
		}
	})
}
