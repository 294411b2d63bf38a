package segment

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// While writes fail or hang, no block is evicted and all of them are loaded; saves fail at
// once when that is known, and succeed again within two seconds of the disk's return. Time
// is the synctest bubble's.
func TestWritesFail(t *testing.T) {
	for name, disk := range map[string]func(op transfer.Op, do func(), back <-chan struct{}){
		"EIO":    func(op transfer.Op, _ func(), _ <-chan struct{}) { op.Done(0, syscall.EIO) },
		"ENOSPC": func(op transfer.Op, _ func(), _ <-chan struct{}) { op.Done(0, syscall.ENOSPC) },
		"refuse": func(op transfer.Op, _ func(), _ <-chan struct{}) { op.Done(0, kv.ErrTimeout) },
		"hang":   hang,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { writesFail(t, disk) })
		})
	}
}

const hangTimeout = 10 * time.Second

// hang abandons a move after the timeout, and finishes it when the disk is back.
func hang(op transfer.Op, do func(), back <-chan struct{}) {
	go func() {
		select {
		case <-back:
			do()
		case <-time.After(hangTimeout):
			op.Done(0, kv.Abandoned("the disk"))
			<-back
			if op.Late != nil {
				op.Late()
			}
		}
	}()
}

func writesFail(t *testing.T, disk func(op transfer.Op, do func(), back <-chan struct{})) {
	const segments, slots, attempts = 8, 4, 40
	m := newInterceptor()
	o := options(t.TempDir(), small, segments, slots)
	o.Engine, o.Timeout = m, hangTimeout
	s := open(t, o)
	for i := range 3 * segments * slots {
		waitReady(t, s)
		save(t, s, keyOf(i))
	}
	waitReady(t, s)
	evicted := s.Stats().EvictedBlocks
	var there []kv.Key
	for i := range 3 * segments * slots {
		if found(t, s, keyOf(i))[0] {
			there = append(there, keyOf(i))
		}
	}
	back := make(chan struct{})
	m.intercept(func(op transfer.Op, do func()) {
		if op.Write {
			disk(op, do, back)
			return
		}
		do()
	})
	begun := time.Now()
	for i := range attempts {
		if err := beginSave(t, s, shardsOf(small, keyOf(1000+i))).Wait(context.Background()); err == nil {
			t.Fatal("a save succeeded")
		}
		time.Sleep(100 * time.Millisecond)
	}
	// Two segments are tried, and the keeper tries as well.
	if took := time.Since(begun) - attempts*100*time.Millisecond; took > 3*hangTimeout {
		t.Errorf("%d saves took %v to fail", attempts, took)
	}
	if n := s.Stats().EvictedBlocks - evicted; n > 0 {
		t.Errorf("%d of %d blocks were evicted while nothing could be written", n, len(there))
	}
	loads(t, s, there...)

	m.intercept(nil)
	close(back)
	returned := time.Now()
	for {
		err := beginSave(t, s, shardsOf(small, keyOf(2000))).Wait(context.Background())
		if err == nil {
			break
		}
		if time.Since(returned) > time.Minute {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(returned); took > 2*time.Second {
		t.Errorf("it is written to again %v after the disk is back", took)
	}
	loads(t, s, keyOf(2000))
	for i := range 2 * segments * slots {
		save(t, s, keyOf(3000+i))
		waitReady(t, s)
	}
	if n := s.Stats().EvictedBlocks; n == evicted {
		t.Error("nothing is evicted any more")
	}
}

// Saves in the one segment that is left fail, and no segment without blocks is there to try.
// The store finds out by itself that the disk is back, and evicts nothing before.
func TestNoSegmentToTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const segments, slots = 4, 4
		m := newInterceptor()
		o := options(t.TempDir(), small, segments, slots)
		o.Engine, o.CarryFraction = m, -1
		s := open(t, o)
		for i := range segments*slots - 1 {
			waitReady(t, s)
			save(t, s, keyOf(i))
		}
		// A read in each segment keeps them from being begun anew.
		evicted := s.Stats().EvictedBlocks
		s.mu.Lock()
		for _, seg := range s.segments {
			seg.pins.Add(1)
		}
		s.mu.Unlock()
		m.intercept(func(op transfer.Op, do func()) {
			if op.Write {
				op.Done(0, syscall.EIO)
				return
			}
			do()
		})
		for i := range 20 {
			err := beginSave(t, s, shardsOf(small, keyOf(1000+i))).Wait(context.Background())
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("it fails with %v", err)
			}
			time.Sleep(time.Second)
		}
		if n := s.Stats().EvictedBlocks - evicted; n > slots {
			t.Errorf("%d blocks were evicted", n)
		}
		m.intercept(nil)
		for _, seg := range s.segments {
			s.unpin(seg)
		}
		time.Sleep(2 * maxTroublePause)
		save(t, s, keysOf(2000, slots)...)
		loads(t, s, keysOf(2000, slots)...)
	})
}
