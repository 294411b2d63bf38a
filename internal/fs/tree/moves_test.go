package tree

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Moves that run alone see no other, and nothing hangs.
func TestMovesRunAlone(t *testing.T) {
	var m moves
	var shared, alone, wrong atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 2000 {
				end := m.share()
				shared.Add(1)
				if alone.Load() > 0 {
					wrong.Add(1)
				}
				shared.Add(-1)
				end()
			}
		})
		wg.Go(func() {
			for range 200 {
				end := m.exclude()
				if alone.Add(1) > 1 || shared.Load() > 0 {
					wrong.Add(1)
				}
				alone.Add(-1)
				end()
			}
		})
	}
	wg.Wait()
	// A machine that stops for movePatience in the middle of a move may cause a few.
	if n := wrong.Load(); n > 4 {
		t.Errorf("%d moves ran beside one that runs alone", n)
	}
	if len(m.shared) != 0 || m.alone != nil {
		t.Errorf("%d moves are left", len(m.shared))
	}
}

// Moves that hang, both shared and alone, delay others for a while only.
func TestMovesThatHang(t *testing.T) {
	var m moves
	hangs := []func(){m.share(), m.exclude(), m.exclude(), m.share()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.share()()
		m.exclude()()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("a move waits for one that hangs")
	}
	for _, end := range hangs {
		end()
	}
	if len(m.shared) != 0 || m.alone != nil {
		t.Errorf("%d moves are left", len(m.shared))
	}
}
