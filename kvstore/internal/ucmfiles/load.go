package ucmfiles

import (
	"context"
	"fmt"
	"slices"
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
			l = &loading{ready: make(chan struct{})}
			blocks[shard.Key] = l
			b.open(shard.Key, l)
		}
		l.left++
	}
	s.group.Go(func() { b.load(blocks) })
	return b.Task, nil
}

// loading is a block of a batch.
type loading struct {
	ready chan struct{} // closed when the rest is set
	h     *handle
	err   error

	left int // how many of its shards no move was begun for
}

func (b *moving) open(key kv.Key, l *loading) {
	var h *handle
	var err error
	b.s.opens.Go(workerpool.Job{
		Context: b.Context(),
		Run:     func() { h, err = b.s.open(key) },
		Done: func(failed error) {
			if failed != nil {
				l.err = failed
			} else {
				l.h, l.err = h, err
			}
			close(l.ready)
		},
		Late: func() {
			if err == nil {
				b.s.release(h)
			}
		},
	})
}

// load hands moves to the engine as their files are opened.
func (b *moving) load(blocks map[kv.Key]*loading) {
	q := batch.Queue{Engine: b.s.engine, Context: b.Context()}
	for i := 0; i < b.Len(); {
		key := b.Shard(i).Key
		l := blocks[key]
		select {
		case <-l.ready:
		default:
			q.Flush()
			<-l.ready
		}
		r := b.runFrom(i, func(int) bool { return true })
		i += r.N
		if l.err != nil {
			b.SettleRun(r, b.s.explain(l.err))
			continue
		}
		if l.left -= r.N; l.left > 0 {
			b.s.handles.share(l.h)
		}
		q.Add(b.read(r, l.h))
	}
	q.Flush()
}

// read returns the move of a run, which ends a use of the handle.
func (b *moving) read(r batch.Run, h *handle) transfer.Op {
	op := transfer.Op{
		File:   h.file,
		Offset: int64(b.Shard(r.First).Index) * b.s.o.Layout.ShardBytes,
		Buf:    r.Buf,
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
		case err == nil && n == len(r.Buf):
			done()
		case err == nil:
			b.cutShort(r, h, len(r.Buf)-n)
		default:
			// Files of a daemon that has gone must be opened again.
			b.s.forgetHandle(h.key)
			b.s.unreadable.failed(h, err)
			b.finish(r, h, err)
		}
	}
	return op
}

// finish ends a use of a handle and settles the run.
func (b *moving) finish(r batch.Run, h *handle, err error) {
	b.s.release(h)
	b.SettleRun(r, b.s.explain(err))
}

// check settles a run that was read and whose shards have these checksums.
func (b *moving) check(r batch.Run, h *handle, have []uint64) {
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
func (b *moving) recheck(r batch.Run, h *handle, have []uint64, wrong []int) {
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
				// A file that is still in its place was written by UCM. Any other was
				// deleted, or another process has found it damaged.
				if unverified, err = s.isUnverified(h, found); err == nil && !unverified {
					err = kv.ErrMiss
					s.forgetHandle(h.key)
				}
				return
			}
			for k, i := range wrong {
				damaged[k] = !matches(b.Shard(i).Index, have[i-r.First], found)
			}
			if slices.Contains(damaged, true) {
				s.quarantine(h)
			}
		},
		Done: func(failed error) {
			s.release(h)
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
				case damaged[k]:
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
	return s.isFinishedAt(h.root, h.key)
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
func (b *moving) cutShort(r batch.Run, h *handle, missing int) {
	err := error(kv.ErrMiss)
	if h.found.Known {
		err = h.damage(fmt.Sprintf("%d bytes of shard %d are missing", missing, b.Shard(r.First+r.N-1).Index))
	}
	b.s.opens.Go(workerpool.Job{
		Run: func() {
			b.s.forgetHandle(h.key)
			if h.found.Known {
				b.s.quarantine(h)
			}
		},
		Done: func(error) { b.finish(r, h, err) },
	})
}
