package segment

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// No segment is flushed beside a load that takes long.
func TestFlushWaitsForLongLoad(t *testing.T) { synctest.Test(t, flushWaitsForLongLoad) }

func flushWaitsForLongLoad(t *testing.T) {
	const slots = 4
	var flushes atomic.Int32
	m := newInterceptor()
	o := options(t.TempDir(), small, 5, slots)
	o.Engine = m
	o.fdatasync = func(*os.File) error { flushes.Add(1); return nil }
	s := open(t, o)
	save(t, s, keyOf(0))
	release := make(chan struct{})
	m.intercept(func(op transfer.Op, do func()) {
		if op.Write {
			do()
			return
		}
		go func() { <-release; do() }()
	})
	task, err := s.Load(context.Background(), shardsOf(small, keyOf(0)))
	if err != nil {
		t.Fatal(err)
	}
	save(t, s, keysOf(1, slots-1)...)
	time.Sleep(5 * quietBeforeFlush)
	synctest.Wait()
	if n := flushes.Load(); n != 0 {
		t.Errorf("%d flushes beside a load", n)
	}
	close(release)
	if err := task.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * quietBeforeFlush)
	synctest.Wait()
	if n := flushes.Load(); n != 1 {
		t.Errorf("%d flushes after the load, not 1", n)
	}
}

// Who loads while several segments are to be flushed waits for one of them at most.
func TestLoadStopsFlushing(t *testing.T) { synctest.Test(t, loadStopsFlushing) }

func loadStopsFlushing(t *testing.T) {
	const slots = 4
	var flushes atomic.Int32
	release := make(chan struct{})
	o := options(t.TempDir(), small, 5, slots)
	o.fdatasync = func(*os.File) error { flushes.Add(1); <-release; return nil }
	s := open(t, o)
	save(t, s, keyOf(0))
	loads(t, s, keyOf(0))
	save(t, s, keysOf(1, 3*slots-1)...)
	time.Sleep(2 * quietBeforeFlush)
	synctest.Wait()
	if n := flushes.Load(); n != 1 {
		t.Fatalf("%d flushes at once, not 1", n)
	}
	loads(t, s, keyOf(0))
	close(release)
	time.Sleep(quietBeforeFlush / 2)
	synctest.Wait()
	if n := flushes.Load(); n != 1 {
		t.Errorf("%d flushes beside a load, not 1", n)
	}
	time.Sleep(3 * quietBeforeFlush)
	synctest.Wait()
	if n := flushes.Load(); n != 3 {
		t.Errorf("%d flushes once nobody loads, not 3", n)
	}
}

// What one process filled and did not flush before it ended, the next one flushes.
func TestFlushAfterReopen(t *testing.T) { synctest.Test(t, flushAfterReopen) }

func flushAfterReopen(t *testing.T) {
	const slots = 4
	var flushes atomic.Int32
	o := options(t.TempDir(), small, 5, slots)
	o.fdatasync = func(*os.File) error { flushes.Add(1); return nil }
	s := open(t, o)
	save(t, s, keyOf(0))
	loads(t, s, keyOf(0))
	save(t, s, keysOf(1, slots)...)
	synctest.Wait()
	if n := flushes.Load(); n != 0 {
		t.Fatalf("%d flushes beside a load", n)
	}
	reopen(t, s, o)
	synctest.Wait()
	if n := flushes.Load(); n != 1 {
		t.Errorf("%d segments flushed after the next Open, not 1", n)
	}
}
