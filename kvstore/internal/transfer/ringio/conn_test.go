package ringio

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// When a daemon answers again that has missed the timeout, calls are waited for again, also
// if many overlap.
func TestBoundRecovers(t *testing.T) {
	c := &conn{o: &Options{Timeout: time.Second}}
	answer, answered := make(chan struct{}), make(chan struct{})
	if err := c.bound(func() error { <-answer; close(answered); return nil }); !errors.Is(err, kv.ErrTimeout) {
		t.Fatalf("a call that hangs: %v", err)
	}
	began := time.Now()
	for range 100 {
		if err := c.bound(func() error { <-answer; return nil }); !errors.Is(err, kv.ErrTimeout) {
			t.Fatalf("a call behind it: %v", err)
		}
	}
	if took := time.Since(began); took > 50*time.Second {
		t.Errorf("100 calls that should not wait took %v", took)
	}
	c.o.Timeout = 20 * time.Second
	close(answer)
	<-answered
	for end := time.Now().Add(20 * time.Second); c.overdue.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the daemon still counts as hung after it has answered")
		}
	}
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for range 20 {
				if err := c.bound(func() error { time.Sleep(time.Millisecond); return nil }); err != nil {
					t.Errorf("a call that is answered: %v", err)
					return
				}
			}
		})
	}
	calls.Wait()
}
