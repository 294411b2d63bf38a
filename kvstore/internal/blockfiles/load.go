package blockfiles

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// Load opens the blocks, several at once, and reads their shards in the order given.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	b, err := s.begin(ctx, batch.Load, shards)
	if err != nil {
		return nil, err
	}
	blocks := map[kv.Key]*loading{}
	for _, shard := range shards {
		l := blocks[shard.Key]
		if l == nil {
			l = &loading{key: shard.Key}
			blocks[shard.Key] = l
		}
		l.left++
	}
	s.group.Go(func() { b.load(blocks) })
	return b.Task, nil
}

// loading is a block of a batch. It belongs to the batch's goroutine, but for what is set
// before ready is closed.
type loading struct {
	key   kv.Key
	ready chan struct{} // closed when h or err is set; nil while the block is not opened
	h     *held
	err   error

	version uint64 // of the file that was opened first, 0 before
	left    int    // how many of its shards no move was begun for
}

// held is a block that a batch has open, in one of the places.
type held struct {
	*handle
	s     *Store
	users atomic.Int32 // the batch, and its moves
}

func newHeld(s *Store, h *handle) *held {
	own := &held{handle: h, s: s}
	own.users.Store(1)
	return own
}

func (h *held) give() {
	if h.users.Add(-1) == 0 {
		h.s.release(h.handle)
		h.s.reads.leave()
	}
}

// open opens a block in a place that the caller has taken.
func (b *moving) open(l *loading) {
	s := b.s
	ready := make(chan struct{})
	l.ready = ready
	if kept := s.handles.take(l.key); kept != nil { // so there is nothing that could hang
		l.h = newHeld(s, kept)
		close(ready)
		return
	}
	var h *handle
	var err error
	s.opens.Go(workerpool.Job{
		Context: b.Context(),
		Run:     func() { h, err = s.open(l.key) },
		Done: func(failed error) {
			switch {
			case failed == nil && err == nil:
				l.h = newHeld(s, h)
			case failed == nil:
				l.err = err
			default:
				l.err = failed
			}
			if l.err != nil && l.err != workerpool.ErrOverdue {
				s.reads.leave()
			}
			close(ready)
		},
		Late: func() {
			if err == nil {
				s.release(h)
			}
			s.reads.leave()
		},
	})
}

// load hands moves to the engine as their files are opened.
func (b *moving) load(blocks map[kv.Key]*loading) {
	q := batch.Queue{Engine: b.s.engine, Context: b.Context()}
	var open []*loading // in the order in which they were opened
	next := 0           // the first shard whose block was not looked at
	for i := 0; i < b.Len(); {
		l := blocks[b.Shard(i).Key]
		for next = max(next, i); next < min(b.Len(), i+ahead); next++ {
			coming := blocks[b.Shard(next).Key]
			if coming.ready != nil {
				continue
			}
			if !b.s.reads.try() {
				break
			}
			b.open(coming)
			open = append(open, coming)
		}
		if l.ready == nil {
			q.Flush()
			open = b.giveBack(open)
			next = i + 1
			if err := b.s.reads.wait(b.Context()); err != nil {
				l.err, l.ready = err, make(chan struct{})
				close(l.ready)
			} else {
				b.open(l)
				open = append(open, l)
			}
		}
		select {
		case <-l.ready:
		default:
			q.Flush()
			<-l.ready
		}
		r := b.runFrom(i, func(int) bool { return true })
		i += r.N
		l.left -= r.N
		l.checkSame()
		if l.err != nil {
			b.SettleRun(r, b.s.explain(l.err))
			continue
		}
		h := l.h
		h.users.Add(1)
		q.Add(b.read(r, h))
		if l.left == 0 {
			h.give()
			l.h = nil
		}
	}
	q.Flush()
}

// giveBack gives back the places of the blocks that a batch has open between their shards.
// A batch that waits for a place must have none that others may wait for.
func (b *moving) giveBack(open []*loading) (none []*loading) {
	for _, l := range open {
		<-l.ready
		if l.h != nil {
			l.version = l.h.version
			l.h.give()
			l.h, l.ready = nil, nil
		}
	}
	return open[:0]
}

// checkSame makes a block a miss if its file is not the one that was opened first: it may
// be another writer's.
func (l *loading) checkSame() {
	if l.h != nil && l.version != 0 && l.h.version != l.version {
		l.h.give()
		l.h, l.err = nil, kv.ErrMiss
	}
}

// read returns the move of a run, which ends a use of the block.
func (b *moving) read(r batch.Run, h *held) transfer.Op {
	for i := r.First; i < r.First+r.N; i++ {
		b.SetVersion(i, h.version)
	}
	op := transfer.Op{
		File:   h.file,
		Offset: h.at.Offset + int64(b.Shard(r.First).Index)*b.s.o.Layout.ShardBytes,
		Buf:    r.Buf,
		Device: b.Shard(r.First).Device,
		Bytes:  b.bytes(r),
	}
	done := func() { b.finish(r, h, nil) }
	switch {
	case len(h.found.Sums) == 0:
		done = func() {
			b.s.counters.UnverifiedShards.Add(int64(r.N))
			b.finish(r, h, nil)
		}
	case b.s.o.Checksums != kv.ChecksumsOff:
		d := blockhead.NewDigest(b.s.o.Layout.ShardBytes, r.N)
		op.Piece = d.Add
		done = func() { b.s.digested(r, d, func() { b.check(r, h, d.Sums()) }) }
	}
	op.Done = func(n int, err error) {
		switch {
		case err == nil && n == b.bytes(r):
			done()
		case err == nil:
			b.cutShort(r, h, b.bytes(r)-n)
		default:
			// Files of a daemon that has gone must be opened again.
			b.s.forgetHandle(h.key)
			b.s.unreadable.read(h.key, h.ino, err)
			b.finish(r, h, orMiss(err))
		}
	}
	return op
}

// bytes returns how many bytes a run has.
func (b *moving) bytes(r batch.Run) int { return r.N * int(b.s.o.Layout.ShardBytes) }

// finish ends a use of a handle and settles the run.
func (b *moving) finish(r batch.Run, h *held, err error) {
	h.give()
	b.SettleRun(r, b.s.explain(err))
}

// check settles a run that was read and whose shards have these checksums.
func (b *moving) check(r batch.Run, h *held, have []uint64) {
	var right, wrong []int
	for k, sum := range have {
		if i := r.First + k; matches(b.Shard(i).Index, sum, h.found) {
			right = append(right, i)
		} else {
			wrong = append(wrong, i)
		}
	}
	if len(wrong) == 0 {
		b.finish(r, h, nil)
		return
	}
	b.recheck(r, h, have, wrong)
	b.settleAll(right, nil)
}

// recheck settles shards that match nothing that was known when the file was opened:
// another writer may since have recorded a variant of its own, or a Delete may have made
// the records void. It may end when the buffers are the caller's again, so it looks at
// the checksums alone.
func (b *moving) recheck(r batch.Run, h *held, have []uint64, wrong []int) {
	s := b.s
	var err error
	unverified := false
	damaged := make([]bool, len(wrong))
	s.opens.Go(workerpool.Job{
		Run: func() {
			found, failed := h.root.sums.Again(h.key, time.Now())
			if err = failed; err != nil {
				return
			}
			if !found.Known {
				// A file that is still in its place is another program's. Any other was
				// deleted, or another process has found it damaged.
				if unverified, err = s.isUnverified(h.handle, found); err == nil && !unverified {
					err = kv.ErrMiss
					s.forgetHandle(h.key)
				}
				return
			}
			for k, i := range wrong {
				damaged[k] = !matches(b.Shard(i).Index, have[i-r.First], found)
			}
			switch {
			case !slices.Contains(damaged, true):
			case found.Unread != nil: // it may be the one that matches
				err = found.Unread
				s.unreadable.add(h.key, h.ino) // a log may stay so for ever, and the block is to be saved again
			case h.root.sums.OfOthers(h.mode): // another program has replaced the block
				if err = s.disown(h.handle); err != nil {
					return
				}
				if found, err = h.root.sums.Again(h.key, time.Now()); err != nil {
					return
				}
				if unverified, err = s.isUnverified(h.handle, found); err == nil && !unverified {
					err = kv.ErrMiss
				}
			default:
				s.quarantine(h.handle)
			}
		},
		Done: func(failed error) {
			h.give()
			if failed == nil {
				failed = err
			}
			if failed == nil && unverified {
				s.counters.UnverifiedShards.Add(int64(len(wrong)))
			}
			for k, i := range wrong {
				switch {
				case failed == kv.ErrMiss:
					b.settle(i, failed)
				case failed != nil:
					b.settle(i, fmt.Errorf("tell damage from another variant of block %s: %w", h.key, failed))
				case damaged[k] && !unverified:
					b.settle(i, h.damage(fmt.Sprintf("the checksum of shard %d is wrong", b.Shard(i).Index)))
				default:
					b.settle(i, nil)
				}
			}
		},
	})
}

// isUnverified reports whether a block that is open, with these records, is one of another
// program's and still in its place.
func (s *Store) isUnverified(h *handle, found sums.Finding) (bool, error) {
	if !s.acceptable(h.root, found, h.mode) || !s.isInPlace(h) {
		return false, nil
	}
	return s.isFinishedAt(h.root, h.key, h.at, h.path)
}

// isInPlace reports whether a block that is open is the one that others would open.
func (s *Store) isInPlace(h *handle) bool {
	st, err := status(unix.AT_FDCWD, h.path)
	return err == nil && st.Ino == h.ino
}

// matches reports whether one of the recorded variants has a shard with this checksum.
func matches(index int, sum uint64, found sums.Finding) bool {
	return slices.ContainsFunc(found.Sums, func(v []uint64) bool { return v[index] == sum })
}

// cutShort settles a run of a block whose file has lost its end since it was opened.
func (b *moving) cutShort(r batch.Run, h *held, missing int) {
	err := error(kv.ErrMiss)
	b.s.opens.Go(workerpool.Job{
		Run: func() {
			b.s.forgetHandle(h.key)
			if h.found.Known && !h.root.sums.OfOthers(h.mode) {
				err = h.damage(fmt.Sprintf("%d bytes of shard %d are missing", missing, b.Shard(r.First+r.N-1).Index))
				b.s.quarantine(h.handle)
			}
		},
		Done: func(failed error) {
			if failed != nil { // Run may still be running
				b.finish(r, h, kv.ErrMiss)
				return
			}
			b.finish(r, h, err)
		},
	})
}
