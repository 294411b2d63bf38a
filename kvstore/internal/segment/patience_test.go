package segment

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Several writers save one block on a disk that fails all writes. Their shards wait for
// space together, not one after the other. Time is the synctest bubble's.
func TestShardsWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := kv.Layout{BlockBytes: 12 * 512, ShardBytes: 512}
		m := newInterceptor()
		o := options(t.TempDir(), l, 3, 2)
		o.Engine, o.Timeout = m, 200*time.Millisecond
		s := open(t, o)
		m.intercept(func(op transfer.Op, _ func()) { op.Done(0, syscall.EIO) })
		for round := range 8 {
			var writers sync.WaitGroup
			for range 4 {
				writers.Go(func() {
					begun := time.Now()
					err := beginSave(t, s, shardsOf(l, keyOf(round))).Wait(context.Background())
					if !errors.Is(err, syscall.EIO) && !errors.Is(err, kv.ErrFull) {
						t.Error(err)
					}
					// Twice the timeout, since the last segment may have become ready at
					// the last moment.
					if took := time.Since(begun); took > 2*o.Timeout {
						t.Errorf("round %d: a batch took %v, with a timeout of %v", round, took, o.Timeout)
					}
				})
			}
			writers.Wait()
		}
	})
}

// A batch that is larger than the store finds space for block after block. It may take
// longer than the timeout, which bounds each wait.
func TestBatchMayTakeLongerThanAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 2
		m := newInterceptor()
		o := options(t.TempDir(), small, 3, slots)
		o.Engine, o.Timeout = m, time.Second
		s := open(t, o)
		m.intercept(func(op transfer.Op, do func()) {
			go func() {
				time.Sleep(o.Timeout / 4)
				do()
			}()
		})
		begun := time.Now()
		save(t, s, keysOf(0, 20*slots)...)
		if took := time.Since(begun); took < 2*o.Timeout {
			t.Fatalf("it took %v: nothing had to wait", took)
		}
		m.intercept(nil)
		loads(t, s, keysOf(19*slots, slots)...)
	})
}
