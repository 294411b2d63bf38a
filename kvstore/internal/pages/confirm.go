package pages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// confirmEvery is for how long a written block waits, at most, for others of its batch. The
// service syncs its log for each request, and a disk that serves nothing else meanwhile
// holds up all loads: requests one after the other, 50 ms each, made loads during a large
// save five times as slow as loads alone; with 2 s between them, as fast.
const confirmEvery = 2 * time.Second

// confirmation is a page that is written and to be confirmed.
type confirmation struct {
	key   kv.Key
	page  *page
	until time.Time // when to give up
	done  func(error)
}

// latest is until when a confirmation may wait for others: never so long that the time it
// has becomes short.
func (c *confirmation) latest(now time.Time, every time.Duration) time.Time {
	left := min(c.until.Sub(now), c.page.confirmBy.Sub(now)) / 4
	return now.Add(min(every, left))
}

// confirmer confirms pages. What is added waits until a batch has nothing more to add, or for
// a while; all that are added until then, and while a request is under way, share a
// request. Its goroutine runs while there is something to confirm; the store's group waits
// for it.
type confirmer struct {
	store *Store
	every time.Duration // confirmEvery

	mu      sync.Mutex
	waiting []confirmation
	latest  time.Time     // when those that wait are confirmed, whatever else is written
	hurried bool          // those that wait are to be confirmed now
	changed chan struct{} // not nil while the goroutine runs: wakes it
}

// add queues a confirmation. Only batches that are under way may call it, and they call
// hurry when they have nothing more to add.
func (c *confirmer) add(one confirmation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{}, 1)
		c.store.group.Go(c.run)
	}
	if latest := one.latest(time.Now(), c.every); len(c.waiting) == 0 || latest.Before(c.latest) {
		c.latest = latest
		c.wake()
	}
	c.waiting = append(c.waiting, one)
}

// hurry has all that wait confirmed at once.
func (c *confirmer) hurry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) > 0 {
		c.hurried = true
		c.wake()
	}
}

func (c *confirmer) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *confirmer) run() {
	for {
		some, wait, changed := c.next()
		switch {
		case len(some) > 0:
			c.confirmAll(some)
		case wait > 0:
			timer := time.NewTimer(wait)
			select {
			case <-changed:
			case <-timer.C:
			}
			timer.Stop()
		default:
			return
		}
	}
}

// next takes what is to be confirmed now. If that is nothing, wait is for how long, at most,
// the rest waits; 0 means that there is no rest, and ends the goroutine.
func (c *confirmer) next() (some []confirmation, wait time.Duration, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait = time.Until(c.latest)
	switch {
	case len(c.waiting) == 0:
		c.changed = nil
		return nil, 0, nil
	case wait > 0 && !c.hurried:
		return nil, wait, c.changed
	}
	some, c.waiting, c.hurried = c.waiting, nil, false
	return some, 0, nil
}

// confirmAll confirms some pages by as few requests as there must be, all at once: then the
// service syncs its log for all of them together.
func (c *confirmer) confirmAll(some []confirmation) {
	var requests sync.WaitGroup
	for part := range slices.Chunk(some, batchKeys) {
		requests.Go(func() { c.confirm(part) })
	}
	requests.Wait()
}

func (c *confirmer) confirm(some []confirmation) {
	keys, pages := make([]kv.Key, len(some)), make([]int64, len(some))
	for i, one := range some {
		keys[i], pages[i] = one.key, one.page.number
	}
	// Close does not cancel it: blocks that are written are worth keeping. The first of
	// them waits for at most one timeout besides its own.
	ctx, done := until(context.Background(), some[len(some)-1].until)
	defer done()
	err := c.store.service.confirm(ctx, keys, pages)
	if errors.Is(err, errUnknown) {
		err = errors.Join(err, c.store.service.initialize(ctx))
	}
	for _, one := range some {
		if err == nil && time.Now().After(one.page.confirmBy) {
			// The service does not say which pages came too late.
			one.done(fmt.Errorf("%w: block %s was confirmed after its reservation had ended", kv.ErrTimeout, one.key))
			continue
		}
		one.done(err)
	}
}
