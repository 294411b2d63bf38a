package ringserver

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock tells the time by which requests age. It stands still while the daemon does: a
// process that was stopped or suspended could answer nothing, so a request that waited
// meanwhile is no older for it.
//
// The daemon looks at its clock every few milliseconds. A gap of more than tolerance
// between two looks is a pause.
type clock struct {
	start     time.Time
	tolerance time.Duration

	last   atomic.Int64 // time since start at the last tick or pause
	paused atomic.Int64 // sum of all pauses

	mu sync.Mutex // held while a pause is added
}

func newClock(tolerance time.Duration) *clock {
	return &clock{start: time.Now(), tolerance: tolerance}
}

// now returns the time since the clock's start, without pauses, in nanoseconds; never 0.
func (c *clock) now() int64 {
	for {
		paused := c.paused.Load()
		t := int64(time.Since(c.start))
		if t-c.last.Load() > int64(c.tolerance) {
			c.pause(t)
			continue
		}
		// A pause that was added meanwhile may lie before or after t.
		if c.paused.Load() == paused {
			return max(t-paused, 1)
		}
	}
}

// tickedAt returns the time at the last tick, on the same clock as now.
func (c *clock) tickedAt() int64 { return c.last.Load() - c.paused.Load() }

// tick keeps the clock going. It is called at intervals well below tolerance.
func (c *clock) tick() int64 {
	now := c.now()
	c.last.Store(int64(time.Since(c.start)))
	return now
}

// pause takes the time since the last tick as a pause that ended at t.
func (c *clock) pause(t int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gap := t - c.last.Load(); gap > int64(c.tolerance) {
		c.paused.Add(gap)
		c.last.Store(t)
	}
}
