package segment

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// While the device hangs in a write to one segment, blocks are saved and loaded in the
// others. When the write returns, the segment is used again.
func TestHungDevice(t *testing.T) { synctest.Test(t, hungDevice) }

func hungDevice(t *testing.T) {
	const slots = 4
	release := make(chan struct{})
	var hung atomic.Bool
	o := options(t.TempDir(), small, 5, slots)
	o.Timeout = time.Second
	o.fdatasync = func(*os.File) error {
		if !hung.Swap(true) {
			<-release
		}
		return nil
	}
	s := open(t, o)
	save(t, s, keysOf(0, slots)...)
	first := s.segmentWith(t, keyOf(0))
	generation := s.generationOf(first)
	for i := range 10 * slots {
		save(t, s, keyOf(100+i))
		waitReady(t, s)
	}
	if s.generationOf(first) != generation {
		t.Error("the segment has a new generation while the hung call may still write to it")
	}
	loads(t, s, keysOf(100+9*slots, slots)...)
	close(release)
	for i := range 10 * slots {
		save(t, s, keyOf(200+i))
		waitReady(t, s)
	}
	if s.generationOf(first) == generation {
		t.Error("the segment is not used again")
	}
}

// Close does not wait forever for a device that is gone, and returns an error.
func TestCloseOnHungDevice(t *testing.T) { synctest.Test(t, closeOnHungDevice) }

func closeOnHungDevice(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	o := options(t.TempDir(), small, 4, 2)
	o.fdatasync = func(*os.File) error { <-release; return nil }
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	save(t, s, keysOf(0, 2)...)
	synctest.Wait() // the segment is full, and being sealed
	begun := time.Now()
	if err := s.Close(); !errors.Is(err, workerpool.ErrOverdue) {
		t.Errorf("Close: %v", err)
	}
	if took := time.Since(begun); took > 2*defaultTimeout {
		t.Errorf("Close took %v", took)
	}
	if _, err := s.Save(context.Background(), shardsOf(small, keyOf(9))); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A full segment is flushed when nobody has loaded for a moment, or after a minute.
func TestFlushWaitsForLoads(t *testing.T) { synctest.Test(t, flushWaitsForLoads) }

func flushWaitsForLoads(t *testing.T) {
	const slots = 4
	var flushes atomic.Int32
	o := options(t.TempDir(), small, 5, slots)
	o.fdatasync = func(*os.File) error { flushes.Add(1); return nil }
	s := open(t, o)
	loadFor := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(quietBeforeFlush / 4) {
			loads(t, s, keyOf(0))
		}
	}
	save(t, s, keyOf(0))
	loads(t, s, keyOf(0))
	save(t, s, keysOf(1, slots-1)...)
	loadFor(mostUnflushed / 2)
	if n := flushes.Load(); n != 0 {
		t.Errorf("%d flushes beside loads", n)
	}
	loadFor(mostUnflushed)
	if n := flushes.Load(); n != 1 {
		t.Errorf("%d flushes after more than a minute of loads, not 1", n)
	}
	save(t, s, keysOf(slots, 2*slots)...)
	loads(t, s, keyOf(0))
	time.Sleep(2 * quietBeforeFlush)
	synctest.Wait()
	if n := flushes.Load(); n != 3 {
		t.Errorf("%d flushes once nobody loads, not 3", n)
	}
}
