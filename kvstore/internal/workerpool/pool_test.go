package workerpool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// outcomes records how jobs were settled.
type outcomes struct {
	mu  sync.Mutex
	all map[string]error
	ran []string
}

func (o *outcomes) job(ctx context.Context, name string, run func()) Job {
	return Job{
		Context: ctx,
		Run: func() {
			o.mu.Lock()
			o.ran = append(o.ran, name)
			o.mu.Unlock()
			run()
		},
		Done: func(err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.all == nil {
				o.all = map[string]error{}
			}
			if _, twice := o.all[name]; twice {
				panic(name + " settled twice")
			}
			o.all[name] = err
		},
	}
}

func (o *outcomes) want(t *testing.T, name string, want error) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if got, settled := o.all[name]; !settled || !errors.Is(got, want) || want == nil && got != nil {
		t.Errorf("%s: settled %v with %v; want %v", name, settled, got, want)
	}
}

func (o *outcomes) settled() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all)
}

func nothing() {}

func TestRunsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(1, time.Second)
		for _, name := range []string{"a", "b", "c"} {
			c.Go(o.job(t.Context(), name, nothing))
		}
		synctest.Wait()
		if !slices.Equal(o.ran, []string{"a", "b", "c"}) {
			t.Error(o.ran)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		c.Go(o.job(t.Context(), "d", nothing))
		o.want(t, "a", nil)
		o.want(t, "d", kv.ErrClosed)
	})
}

// One that hangs is given up after the time; the others go on; and when it comes
// back, that is told.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(2, time.Second)
		release, late := make(chan struct{}), make(chan struct{})
		stuck := o.job(t.Context(), "stuck", func() { <-release })
		stuck.Late = func() { close(late) }
		c.Go(stuck)
		c.Go(o.job(t.Context(), "slow", func() { time.Sleep(900 * time.Millisecond) }))
		c.Go(o.job(t.Context(), "next", nothing))
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		o.want(t, "slow", nil)
		o.want(t, "next", nil)
		if n := o.settled(); n != 2 {
			t.Errorf("%d settled: given up too early", n)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		o.want(t, "stuck", ErrOverdue)
		if err := c.Close(); !errors.Is(err, ErrOverdue) {
			t.Errorf("closed: %v", err)
		}
		close(release)
		<-late
	})
}

// When all hang, nobody waits behind them.
func TestAllHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(2, time.Second)
		release := make(chan struct{})
		for _, name := range []string{"one", "two"} {
			c.Go(o.job(t.Context(), name, func() { <-release }))
		}
		time.Sleep(time.Second / 2)
		c.Go(o.job(t.Context(), "behind", nothing))
		time.Sleep(time.Second / 2)
		synctest.Wait()
		c.Go(o.job(t.Context(), "after", nothing))
		o.want(t, "one", ErrOverdue)
		o.want(t, "behind", kv.ErrTimeout)
		o.want(t, "after", kv.ErrTimeout)

		close(release)
		synctest.Wait()
		c.Go(o.job(t.Context(), "again", nothing))
		synctest.Wait()
		o.want(t, "again", nil)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(1, time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		// Two that take nearly all the time each: the third has waited too long.
		c.Go(o.job(t.Context(), "first", func() { time.Sleep(900 * time.Millisecond) }))
		c.Go(o.job(t.Context(), "second", func() { time.Sleep(900 * time.Millisecond) }))
		c.Go(o.job(t.Context(), "third", nothing))
		c.Go(o.job(ctx, "cancelled", nothing))
		cancel()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		o.want(t, "second", nil)
		o.want(t, "third", kv.ErrTimeout)
		o.want(t, "cancelled", context.Canceled)
		if len(o.ran) != 2 {
			t.Errorf("ran: %q", o.ran)
		}
		c.Go(o.job(t.Context(), "last", func() { time.Sleep(time.Second / 2) }))
		c.Go(o.job(t.Context(), "closed", nothing))
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		o.want(t, "last", nil)
		o.want(t, "closed", kv.ErrClosed)
	})
}
