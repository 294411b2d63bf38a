package httpserver

import (
	"context"
	"sync"
)

// budget shares a resource among clients: no client may hold more than it leaves for the
// others, beyond its first piece. So one client gets half of it, two get a third each,
// and whoever comes next is served at once.
type budget struct {
	mu    sync.Mutex
	max   int64
	used  int64
	of    map[client]int64
	freed chan struct{} // closed when something was given back
}

func newBudget(most int64) *budget {
	return &budget{max: most, of: map[client]int64{}, freed: make(chan struct{})}
}

// take takes n for a client, unless that is too much now.
func (b *budget) take(c client, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takeLocked(c, n)
}

func (b *budget) takeLocked(c client, n int64) bool {
	held, left := b.of[c], b.max-b.used-n
	if left < 0 || held > 0 && held+n > left {
		return false
	}
	b.used += n
	b.of[c] = held + n
	return true
}

// await takes n for a client as soon as that is not too much. n is at most b.max.
func (b *budget) await(ctx context.Context, c client, n int64) error {
	for {
		b.mu.Lock()
		ok, freed := b.takeLocked(c, n), b.freed
		b.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// give gives back what was taken.
func (b *budget) give(c client, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.of[c] -= n; b.of[c] == 0 {
		delete(b.of, c)
	}
	close(b.freed)
	b.freed = make(chan struct{})
}
