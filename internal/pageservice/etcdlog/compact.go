package etcdlog

import (
	"context"
	"iter"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Where no follower takes snapshots, the committer rewrites what the owner still needs of the oldest records, and drops
// those: what the journal of one host does, too.

// leastRewrite is how many bytes of old records are looked at, at least.
const leastRewrite = 64 << 10

// mostRewrite leaves room in a group for the writes with which it goes.
const mostRewrite = groupBytes / 4

// wasteful reports whether compaction is due: less than half of what a start would read is needed.
func (l *leader) wasteful() bool {
	all, _ := l.sizeBytes()
	return l.alone.Load() && all > 2*l.owner.LiveBytes()+l.o.SnapshotBytes
}

// rewriter reads records from the oldest on. What it has passed to the owner can be dropped when what the owner keeps was appended.
type rewriter struct {
	l     *leader
	begun bool

	snapshot func() ([]byte, error, bool) // the next record of the snapshot that comes first; nil: no more
	stop     func()
	extra    int64 // bytes that were read since whole, or since the beginning

	next   uint64 // the batch to be read
	bytes  int64  // of the one before; 0: not known
	joiner joiner
	whole  uint64 // what is before this batch is not needed; 0: not so far yet
}

func newRewriter(l *leader) *rewriter { return &rewriter{l: l} }

func (r *rewriter) close() {
	if r != nil && r.stop != nil {
		r.stop()
	}
}

// begin finds the oldest record.
func (r *rewriter) begin(ctx context.Context) error {
	v, err := r.l.view(ctx)
	if err != nil {
		return err
	}
	if v.needsNone() {
		r.next, r.begun = v.head.Whole, true
		return nil
	}
	dir, id := r.l.snapshotDir(), r.l.cluster.ID()
	for _, ref := range v.usable() {
		// It is read twice: a damaged one must not be rewritten in part.
		if err = readSnapshot(dir, id, ref, func([]byte) error { return ctx.Err() }); err != nil {
			continue
		}
		r.snapshot, r.stop = iter.Pull2(func(yield func([]byte, error) bool) {
			err := readSnapshot(dir, id, ref, func(rec []byte) error {
				if !yield(rec, nil) {
					return pageservice.ErrClosed
				}
				return nil
			})
			if err != nil {
				yield(nil, err)
			}
		})
		r.next, r.begun = ref.Index+1, true
		return nil
	}
	if err == nil {
		err = damaged("the log in etcd begins with batch %d, and there is no snapshot", v.first())
	}
	return err
}

// some passes about so many bytes of records to the owner, and returns what it keeps of them, and how many bytes of batches
// can be dropped.
func (r *rewriter) some(ctx context.Context, budget int64) (kept [][]byte, batches int64, err error) {
	if !r.begun {
		if err := r.begin(ctx); err != nil {
			return nil, 0, err
		}
	}
	for budget > 0 && r.snapshot != nil {
		rec, err, more := r.snapshot()
		if err != nil {
			return nil, 0, err
		}
		if !more {
			r.stop()
			r.snapshot, r.stop, r.whole = nil, nil, r.next
			batches, r.extra = r.extra, 0
			break
		}
		kept = append(kept, r.l.owner.Keep(rec)...)
		budget -= int64(len(rec)) + 1
		r.extra += int64(len(rec)) + 1
	}
	for budget > 0 && r.snapshot == nil && r.next <= r.l.head.Index {
		several := uint64(0)
		if r.bytes > 0 {
			several = uint64(budget / r.bytes)
		}
		values, err := r.l.fetch(ctx, r.next, min(r.l.head.Index, r.next+several))
		if err != nil {
			return nil, 0, err
		}
		for _, value := range values {
			b, _, err := decodeBatch(value)
			if err != nil {
				return nil, 0, damaged("%s: %v", r.l.keys.batch(r.next), err)
			}
			group, whole, err := r.joiner.add(&b)
			if err == nil && whole {
				err = frames(group, func(rec []byte) error {
					kept = append(kept, r.l.owner.Keep(rec)...)
					return nil
				})
			}
			if err != nil {
				return nil, 0, damaged("%s: %v", r.l.keys.batch(r.next), err)
			}
			r.bytes = int64(len(value))
			budget -= r.bytes
			r.extra += r.bytes
			r.next++
			if r.joiner.next == 0 {
				r.whole = r.next
				batches, r.extra = batches+r.extra, 0
			}
		}
	}
	return kept, batches, nil
}
