package tier_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/tier"
)

// While the far store fails at once, a save that finds the queue full does not wait for it, block after block.
func TestFullQueueOfAStoreThatFails(t *testing.T) {
	const most, blocks = 4, 100
	for _, why := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
		h := hostOn(t, t.TempDir(), "a", tier.Options{WaitingBlocks: most})
		h.far.Set(fault.Fault{Method: fault.Save, Err: why})
		task, err := h.Save(t.Context(), shards(keys(0, blocks), true))
		if err == nil {
			err = task.Wait(h.bounded())
		}
		if err != nil {
			t.Fatal(err)
		}
		h.load(keys(0, blocks)...)
		if n := h.Stats().DroppedBlocks; n != blocks-most {
			t.Errorf("%d blocks dropped", n)
		}
		if err := h.Flush(h.bounded()); !errors.Is(err, why) || !strings.Contains(err.Error(), "96 blocks did not get from Segment to Posix") ||
			!strings.Contains(err.Error(), "4 blocks of Segment are not in Posix yet") {
			t.Errorf("Flush: %v", err)
		}
		h.far.Set()
		h.flush()
	}
}

// One attempt that fails costs no blocks when the queue is full: the next may succeed.
func TestFullQueueAfterOneFailure(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{WaitingBlocks: 4})
	h.far.Set(fault.Fault{Method: fault.Save, Count: 1, Err: syscall.EIO})
	h.save(key(0))
	h.eventually("it has failed", func() bool { return h.far.Hits()[0] > 0 })
	h.save(keys(1, 50)...)
	h.flush()
	if n := h.has(h.far, keys(0, 51)...); n != 51 {
		t.Errorf("%d are far", n)
	}
}

// A far store that takes nothing and says nothing costs a batch one timeout, not one for each block.
func TestFullQueueCostsOneTimeout(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{WaitingBlocks: 4, Timeout: 2 * time.Second})
	hold := make(chan struct{})
	h.far.Set(fault.Fault{Method: fault.Save, Hold: hold})
	task, err := h.Save(t.Context(), shards(keys(0, 50), true))
	if err == nil {
		err = task.Wait(h.bounded())
	}
	if err != nil {
		t.Error(err)
	}
	close(hold)
	if err := h.Flush(h.bounded()); err == nil || !strings.Contains(err.Error(), "did not get from Segment to Posix") {
		t.Errorf("Flush: %v", err)
	}
}

// A block that the near store cannot read for a moment stays in the queue.
func TestNearCannotBeReadForAMoment(t *testing.T) {
	for _, why := range []error{syscall.EIO, kv.ErrTimeout} {
		h := hostOn(t, t.TempDir(), "a", tier.Options{})
		h.near.Set(fault.Fault{Method: fault.Load, Err: why})
		h.save(keys(0, 5)...)
		if err := h.Flush(h.bounded()); !errors.Is(err, why) || !strings.Contains(err.Error(), "5 blocks of Segment are not in Posix yet") || strings.Contains(err.Error(), "did not get") {
			t.Errorf("Flush: %v", err)
		}
		h.near.Set()
		h.flush()
		if n := h.has(h.far, keys(0, 5)...); n != 5 {
			t.Errorf("%d have arrived", n)
		}
	}
}

// A block that came in several batches is sent, or Flush says that it was not, whatever the near store
// says of it when its last part is saved.
func TestPartsOfABlockThatIsNotFoundNear(t *testing.T) {
	parts := func(h *host) {
		for _, s := range shards(keys(0, 1), true) {
			task, err := h.Save(t.Context(), []kv.Shard{s})
			if err == nil {
				err = task.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, lookup := range map[string]fault.Fault{"not found": {Method: fault.Lookup, Drop: true}, "not answered": {Method: fault.Lookup, Err: kv.ErrTimeout}} {
		t.Run(name, func(t *testing.T) {
			h := hostOn(t, t.TempDir(), "a", tier.Options{})
			h.near.Set(lookup)
			parts(h)
			h.flush()
			if h.has(h.far, key(0)) != 1 {
				t.Error("it is not far")
			}
		})
	}
	t.Run("saved again", func(t *testing.T) {
		h := hostOn(t, t.TempDir(), "a", tier.Options{})
		isLast := func(_ kv.Key, index int) bool { return index == layout.Shards()-1 }
		h.near.Set(fault.Fault{Method: fault.Lookup, Drop: true}, fault.Fault{Method: fault.Save, Where: isLast, Count: 1, Err: syscall.ENOSPC})
		all := shards(keys(0, 1), true)
		for _, part := range [][]kv.Shard{all[:1], all[1:], all[2:]} {
			task, err := h.Save(t.Context(), part)
			if err == nil {
				err = task.Wait(t.Context())
			}
			if err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
		}
		h.flush()
		if h.has(h.far, key(0)) != 1 {
			t.Error("it is not far")
		}
	})
	t.Run("gone", func(t *testing.T) {
		h := hostOn(t, t.TempDir(), "a", tier.Options{})
		h.near.Set(fault.Fault{Method: fault.Lookup, Drop: true}, fault.Fault{Method: fault.Load, Err: kv.ErrMiss})
		parts(h)
		if err := h.Flush(h.bounded()); err == nil || !strings.Contains(err.Error(), "1 blocks did not get from Segment to Posix") {
			t.Errorf("Flush: %v", err)
		}
	})
}

// A Delete that fails leaves the block in the queue.
func TestDeleteThatFails(t *testing.T) {
	t.Run("near", func(t *testing.T) {
		h := hostOn(t, t.TempDir(), "a", tier.Options{})
		h.far.Set(fault.Fault{Method: fault.Save, Err: syscall.ENOSPC})
		h.save(key(0))
		h.near.Set(fault.Fault{Method: fault.Delete, Err: syscall.EIO})
		if err := h.Delete(t.Context(), keys(0, 1)); !errors.Is(err, syscall.EIO) {
			t.Errorf("Delete: %v", err)
		}
		h.far.Set()
		h.near.Set()
		h.flush()
		if h.has(h.near, key(0)) != 1 || h.has(h.far, key(0)) != 1 {
			t.Error("the block is not in both stores")
		}
	})
	t.Run("near, of a block that is far", func(t *testing.T) {
		h := hostOn(t, t.TempDir(), "a", tier.Options{})
		h.save(key(0))
		h.flush()
		h.near.Set(fault.Fault{Method: fault.Delete, Err: syscall.EIO})
		if err := h.Delete(t.Context(), keys(0, 2)); !errors.Is(err, syscall.EIO) {
			t.Errorf("Delete: %v", err)
		}
		h.flush()
		if h.has(h.near, key(0)) != 1 || h.has(h.far, key(0)) != 1 {
			t.Error("the block is not in both stores")
		}
	})
	t.Run("ended", func(t *testing.T) { deleteEnds(t, false) })
	t.Run("ended, and evicted", func(t *testing.T) { deleteEnds(t, true) })
}

// A Delete that has not come to the near store makes no block one that may be lost.
func deleteEnds(t *testing.T, evicted bool) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	hold := make(chan struct{})
	h.far.Set(fault.Fault{Method: fault.Save, Hold: hold, Err: syscall.EIO})
	h.save(key(0))
	h.eventually("it is being sent", func() bool { return h.far.Hits()[0] > 0 })
	ctx, cancel := context.WithCancel(t.Context())
	deleted := make(chan error)
	go func() { deleted <- h.Delete(ctx, keys(0, 1)) }()
	h.eventually("Delete has taken it out of the queue", func() bool { return h.Stats().UnsentBlocks == 0 })
	cancel()
	if err := <-deleted; !errors.Is(err, context.Canceled) {
		t.Errorf("Delete: %v", err)
	}
	if evicted {
		if err := h.near.Delete(t.Context(), keys(0, 1)); err != nil {
			t.Fatal(err)
		}
	}
	close(hold)
	h.far.Set()
	if evicted {
		h.mustLose(1)
		return
	}
	h.flush()
	if h.has(h.near, key(0)) != 1 || h.has(h.far, key(0)) != 1 {
		t.Error("the block is not in both stores")
	}
}

// mustLose checks that Flush says that blocks were lost.
func (h *host) mustLose(n int) {
	h.Helper()
	if err := h.Flush(h.bounded()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d blocks did not get from Segment to Posix", n)) {
		h.Errorf("Flush: %v", err)
	}
}

// A block that is saved again while it waits after a Delete that failed, and is evicted then, is lost.
func TestSavedAfterADeleteThatFailed(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	h.far.Set(fault.Fault{Method: fault.Save, Err: syscall.ENOSPC})
	h.save(key(0))
	h.near.Set(fault.Fault{Method: fault.Delete, Err: syscall.EIO})
	if err := h.Delete(t.Context(), keys(0, 1)); !errors.Is(err, syscall.EIO) {
		t.Errorf("Delete: %v", err)
	}
	h.near.Set()
	h.save(key(0))
	if err := h.near.Delete(t.Context(), keys(0, 1)); err != nil {
		t.Fatal(err)
	}
	h.far.Set()
	h.mustLose(1)
}

// A block that is saved again just when a sender has found that it is not near any more is sent.
func TestSavedWhileASenderMissesIt(t *testing.T) {
	for name, deletes := range map[string]bool{"evicted": false, "a Delete has failed": true} {
		t.Run(name, func(t *testing.T) {
			h := hostOn(t, t.TempDir(), "a", tier.Options{})
			h.far.Set(fault.Fault{Method: fault.Save, Err: syscall.ENOSPC})
			h.save(key(0))
			if deletes {
				h.near.Set(fault.Fault{Method: fault.Delete, Err: syscall.EIO})
				if err := h.Delete(t.Context(), keys(0, 1)); !errors.Is(err, syscall.EIO) {
					t.Errorf("Delete: %v", err)
				}
			}
			hold := make(chan struct{})
			h.near.Set(fault.Fault{Method: fault.Load, Hold: hold, Err: kv.ErrMiss})
			h.eventually("a sender reads it", func() bool { return h.near.Hits()[0] > 0 })
			h.save(key(0))
			h.near.Set()
			h.far.Set()
			close(hold)
			h.flush()
			if h.has(h.near, key(0)) != 1 || h.has(h.far, key(0)) != 1 {
				t.Error("the block is not in both stores")
			}
		})
	}
}

// What is saved and deleted while the far store does not answer leaves the queue.
func TestQueueIsBoundedWhileFarHangs(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	h.far.Set(hung(kv.ErrTimeout)...)
	if err := h.tryLoad(h.Store, key(999)); !errors.Is(err, kv.ErrTimeout) {
		t.Fatal(err)
	}
	for n := range 300 {
		h.save(key(n))
		if err := h.Delete(t.Context(), keys(n, 1)); !errors.Is(err, kv.ErrTimeout) {
			t.Fatal(err)
		}
	}
	if n := h.Queued(); n > 100 {
		t.Errorf("the queue has %d places for %d blocks", n, h.Stats().UnsentBlocks)
	}
}

// A block that the far store refuses for ever keeps no others from getting there.
func TestRefusedBlock(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	isBad := func(k kv.Key, _ int) bool { return k == key(0) }
	h.far.Set(fault.Fault{Method: fault.Save, Where: isBad, Err: syscall.EINVAL}, fault.Fault{Method: fault.Lookup, Where: isBad, Err: syscall.ENAMETOOLONG})
	for n := range 40 {
		h.save(key(n))
	}
	h.eventually("all others are far", func() bool { return h.Stats().UnsentBlocks == 1 })
	h.save(keys(100, 40)...)
	if err := h.Flush(h.bounded()); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "1 blocks of Segment are not in Posix yet") {
		t.Errorf("Flush: %v", err)
	}
	if n := h.has(h.far, append(keys(1, 39), keys(100, 40)...)...); n != 79 {
		t.Errorf("%d are far", n)
	}
}

// With WriteThrough, a block that comes in parts is sent again only if the far store has refused one of them.
func TestWriteThroughInParts(t *testing.T) {
	for _, refused := range []int{0, 1} {
		h := hostOn(t, t.TempDir(), "a", tier.Options{WriteThrough: true})
		h.near.Set(fault.Fault{Method: fault.Lookup}, fault.Fault{Method: fault.Load}) // they only count
		for i, s := range shards(keys(0, 1), true) {
			h.far.Set()
			if i < refused {
				h.far.Set(fault.Fault{Method: fault.Save, Err: syscall.EIO})
			}
			task, err := h.Save(t.Context(), []kv.Shard{s})
			if err == nil {
				err = task.Wait(t.Context())
			}
			if (err != nil) != (i < refused) {
				t.Fatal(err)
			}
		}
		h.flush()
		if hits := h.near.Hits(); refused == 0 && hits[0]+hits[1] > 0 {
			t.Errorf("the near store was asked %d times, and read %d times", hits[0], hits[1])
		}
		if h.has(h.far, key(0)) != 1 {
			t.Error("it is not far")
		}
	}
}

// A block that is deleted while it is saved may be near no more when it is to be sent. That is no loss.
func TestDeletedWhileSaved(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	for n := range 200 {
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { h.save(key(n % 8)) })
			all.Go(func() {
				if err := h.Delete(t.Context(), keys(n%8, 1)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	if err := h.Flush(h.bounded()); err != nil || h.Stats().DroppedBlocks != 0 {
		t.Errorf("%d blocks count as lost: %v", h.Stats().DroppedBlocks, err)
	}
}

// With WriteThrough, what the far store has refused and for which the queue has no place counts as lost.
func TestWriteThroughWithAFullQueue(t *testing.T) {
	var log lines
	h := hostOn(t, t.TempDir(), "a", tier.Options{WriteThrough: true, WaitingBlocks: 2, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	h.far.Set(fault.Fault{Method: fault.Save, Err: syscall.EIO})
	for n := range 5 {
		task, err := h.Save(t.Context(), shards(keys(n, 1), true))
		if err == nil {
			err = task.Wait(t.Context())
		}
		if !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
	}
	if stats := h.Stats(); stats.UnsentBlocks != 2 || stats.DroppedBlocks != 3 || log.count("do not get from near to far") != 1 {
		t.Errorf("%d blocks wait, %d were dropped; the log: %s", stats.UnsentBlocks, stats.DroppedBlocks, log.all.String())
	}
	if err := h.Flush(h.bounded()); err == nil || !strings.Contains(err.Error(), "3 blocks did not get") {
		t.Errorf("Flush: %v", err)
	}
}

// With WriteThrough, what the far store has refused and the near one has taken is sent later.
func TestWriteThroughIsSentLater(t *testing.T) {
	for name, why := range map[string]error{"fails": syscall.EIO, "does not answer": kv.ErrTimeout} {
		t.Run(name, func(t *testing.T) {
			h := hostOn(t, t.TempDir(), "a", tier.Options{WriteThrough: true})
			h.far.Set(fault.Fault{Method: fault.Save, Err: why})
			if err := h.trySave(keys(0, 3)...); !errors.Is(err, why) {
				t.Errorf("saving: %v", err)
			}
			h.far.Set()
			h.eventually("Flush succeeds", func() bool { return h.Flush(h.bounded()) == nil })
			if near, far := h.has(h.near, keys(0, 3)...), h.has(h.far, keys(0, 3)...); near != far {
				t.Errorf("%d are near, %d far", near, far)
			}
		})
	}
}

// With WriteThrough, a block that was deleted while the far store refused it is no loss, though the queue has no place for it.
func TestWriteThroughDeletedMeanwhile(t *testing.T) {
	h := hostOn(t, t.TempDir(), "a", tier.Options{WriteThrough: true, WaitingBlocks: 1})
	h.far.Set(fault.Fault{Method: fault.Save, Err: syscall.EIO})
	if err := h.trySave(key(0)); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	is := func(k kv.Key, _ int) bool { return k == key(1) }
	h.far.Set(fault.Fault{Method: fault.Save, Where: is, Hold: hold, Err: syscall.EIO}, fault.Fault{Method: fault.Save, Err: syscall.EIO})
	task, err := h.Save(t.Context(), shards(keys(1, 1), true))
	if err != nil {
		t.Fatal(err)
	}
	h.eventually("it is near", func() bool { return h.has(h.near, key(1)) == 1 })
	if err := h.Delete(t.Context(), keys(1, 1)); err != nil {
		t.Error(err)
	}
	close(hold)
	if err := task.Wait(h.bounded()); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	if n := h.Stats().DroppedBlocks; n > 0 {
		t.Errorf("%d blocks count as lost", n)
	}
}

// stuckLog is a log that nobody reads.
type stuckLog struct {
	begun, until chan struct{}
	once         sync.Once
}

func (l *stuckLog) Write(b []byte) (int, error) {
	l.once.Do(func() { close(l.begun) })
	<-l.until
	return len(b), nil
}

// A log that nobody reads holds up only who writes to it.
func TestStuckLog(t *testing.T) {
	log := &stuckLog{begun: make(chan struct{}), until: make(chan struct{})}
	h := hostOn(t, t.TempDir(), "a", tier.Options{WriteThrough: true, WaitingBlocks: 1, Logger: slog.New(slog.NewTextHandler(log, nil))})
	h.far.Set(fault.Fault{Method: fault.Save, Err: syscall.EIO})
	var all sync.WaitGroup
	all.Go(func() { _ = h.trySave(keys(0, 3)...) })
	select {
	case <-log.begun:
	case <-h.bounded().Done():
		t.Error("nothing was logged")
	}
	done := make(chan struct{})
	all.Go(func() {
		defer close(done)
		h.Stats()
		if err := h.Delete(t.Context(), keys(7, 1)); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-done:
	case <-h.bounded().Done():
		t.Error("others wait for the log")
	}
	close(log.until)
	all.Wait()
}
