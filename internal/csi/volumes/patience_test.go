package volumes

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// A call that hangs gives its caller an error within the bound, and others for the same target one at once, until it ends.
func TestCallsThatHang(t *testing.T) {
	p := newPatience(20 * time.Millisecond)
	release := make(chan struct{})
	var f *Failure
	if err := p.alone(t.Context(), "t", func() error { <-release; return nil }); !errors.As(err, &f) || f.Kind != NotReady {
		t.Errorf("the first: %v", err)
	}
	if err := p.alone(t.Context(), "t", func() error { t.Error("both run"); return nil }); !errors.As(err, &f) || f.Kind != Busy {
		t.Errorf("the second: %v", err)
	}
	close(release)
	p.calls.Wait()
	p.limit = time.Minute
	if err := p.alone(t.Context(), "t", func() error { return nil }); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stay := make(chan struct{})
	defer close(stay)
	if err := p.alone(ctx, "t", func() error { cancel(); <-stay; return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	p.limit = 20 * time.Millisecond
	p.drain() // does not wait for ever
}

// However many ask for a mount that hangs, one call is made.
func TestSharedCall(t *testing.T) {
	p := newPatience(20 * time.Millisecond)
	var s shared[int]
	release := make(chan struct{})
	calls := 0
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			_, err := s.ask(t.Context(), p, "k", "it", func() (int, error) { calls++; <-release; return 7, nil })
			if f := (*Failure)(nil); !errors.As(err, &f) || f.Kind != NotReady {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	if v, err := s.ask(t.Context(), newPatience(time.Minute), "other", "it", func() (int, error) { return 8, nil }); v != 8 || err != nil {
		t.Errorf("%d, %v", v, err)
	}
	close(release)
	p.calls.Wait()
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
}
