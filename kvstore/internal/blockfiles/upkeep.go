package blockfiles

import (
	"sync"
	"time"
)

const (
	tidyGap = time.Hour

	// idleGap is how long a file without users stays open; at most twice as long. While a
	// removed file is open, the file system cannot reuse its space.
	idleGap = time.Minute
)

// expiry is how long an unfinished block may go without a new shard.
func (s *Store) expiry() time.Duration { return 2 * s.o.Timeout }

// maintain periodically drops unfinished blocks, closes idle files and tidies up.
func (s *Store) maintain() {
	defer close(s.upkeep)
	expire := time.NewTicker(s.o.Timeout)
	defer expire.Stop()
	idle := time.NewTicker(idleGap)
	defer idle.Stop()
	tidy := time.NewTimer(0)
	defer tidy.Stop()
	for {
		select {
		case <-s.group.Closing().Done():
			return
		case <-expire.C:
			s.dropUnfinished(s.expiry())
		case <-idle.C:
			s.closeHandles(s.handles.closeIdle())
		case <-tidy.C:
			s.tidy()
			tidy.Reset(tidyGap)
		}
	}
}

// dropUnfinished gives up the blocks that have had no new shard for idle, and waits
// until they are dropped.
func (s *Store) dropUnfinished(idle time.Duration) {
	var wg sync.WaitGroup
	for _, b := range s.unfinished.Expire(idle) {
		wg.Add(1)
		s.giveUp(b, wg.Done)
	}
	wg.Wait()
}

// tidy moves spare blocks to their places, removes old temporary files and maintains the
// checksum logs.
func (s *Store) tidy() {
	s.leftovers.begin()
	for _, r := range s.roots {
		s.settleSpares(r) // first: until then their side files are alone
		s.sweep(r)
		_ = r.sums.Touch()
		if r.sums.Grown() {
			_ = s.compact(r)
		}
	}
}
