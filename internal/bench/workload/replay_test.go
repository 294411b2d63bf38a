package workload

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/usrbio"
)

// slowRing has a completion from time to time.
type slowRing time.Duration

func (s slowRing) Wait(ctx context.Context, dst []usrbio.Completion, atLeast int) (int, error) {
	select {
	case <-time.After(time.Duration(s)):
		return 1, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// The limit is for a completion and not for all that are in flight.
func TestWaitLimitIsPerCompletion(t *testing.T) {
	dst := make([]usrbio.Completion, 8)
	began := time.Now()
	for range 20 {
		if n, err := waitFor(t.Context(), slowRing(20*time.Millisecond), dst, 1, 300*time.Millisecond); n != 1 || err != nil {
			t.Fatalf("%d, %v after %v", n, err, time.Since(began))
		}
	}
	if n, err := waitFor(t.Context(), slowRing(time.Hour), dst, 1, time.Millisecond); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a ring that hangs: %d, %v", n, err)
	}
}
