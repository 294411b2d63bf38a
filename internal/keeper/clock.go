package keeper

import (
	"sync"
	"time"
)

// stepNoticed is the smallest step of the wall clock that counts as one: adjustments by
// slewing are slower.
const stepNoticed = 2 * time.Second

// wallClock remembers how the wall clock stood to the monotonic one, because mtimes from
// before a step of it are from another clock.
type wallClock struct {
	mu    sync.Mutex
	now   func() (monotonic time.Duration, wall time.Time)
	stood []stand // the last one holds
}

// stand is the wall clock's time at the monotonic clock's zero, which held until the
// monotonic time until.
type stand struct {
	zero  time.Time
	until time.Duration
}

func newWallClock() *wallClock {
	start := time.Now()
	return &wallClock{now: func() (time.Duration, time.Time) {
		t := time.Now()
		return t.Sub(start), t.Round(0)
	}}
}

// A step of the wall clock matters for as long as the longest grace period. A clock that
// steps all the time must not fill memory.
const (
	forgetStep = 25 * time.Hour
	mostSteps  = 64
)

// look notices a step and returns it, 0 for none.
func (c *wallClock) look() (step time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, wall := c.now()
	zero := wall.Add(-at)
	if n := len(c.stood); n > 0 {
		if step = zero.Sub(c.stood[n-1].zero); step.Abs() < stepNoticed {
			return 0
		}
		c.stood[n-1].until = at
	}
	for len(c.stood) > 0 && (at-c.stood[0].until > forgetStep || len(c.stood) == mostSteps) {
		c.stood = c.stood[1:]
	}
	c.stood = append(c.stood, stand{zero: zero})
	return step
}

// young reports whether a file whose bytes were changed at mtime is younger than grace, and
// for how long it is going to be. An mtime that is ahead by less than grace is young: other
// hosts' clocks differ.
func (c *wallClock) young(mtime time.Time, grace time.Duration) (left time.Duration, young bool) {
	c.look()
	c.mu.Lock()
	defer c.mu.Unlock()
	at, _ := c.now()
	for i, s := range c.stood {
		if i < len(c.stood)-1 && at-s.until > grace {
			continue
		}
		if age := at - mtime.Sub(s.zero); age > -grace && age < grace {
			left, young = max(left, grace-age), true
		}
	}
	return left, young
}
