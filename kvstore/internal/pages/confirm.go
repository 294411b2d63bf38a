package pages

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// confirmation is a page that is written and to be confirmed.
type confirmation struct {
	key   kv.Key
	page  *page
	until time.Time // when to give up
	done  func(error)
}

// confirmer confirms pages. All that are added while one request is under way share the
// next one. Its goroutine runs while there is something to confirm; the store's group
// waits for it.
type confirmer struct {
	store *Store

	mu      sync.Mutex
	running bool
	waiting []confirmation
}

// add queues a confirmation. Only batches that are under way may call it.
func (c *confirmer) add(one confirmation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, one)
	if !c.running {
		c.running = true
		c.store.group.Go(c.run)
	}
}

func (c *confirmer) run() {
	for {
		c.mu.Lock()
		some := c.waiting[:min(batchKeys, len(c.waiting))]
		c.waiting = c.waiting[len(some):]
		if len(some) == 0 {
			c.waiting, c.running = nil, false
		}
		c.mu.Unlock()
		if len(some) == 0 {
			return
		}
		c.confirm(some)
	}
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
