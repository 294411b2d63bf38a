package ringbench

import (
	"context"
	"sync"
	"time"
)

// contender is one way to move the bytes. Only one run at a time is under way.
type contender interface {
	name() string
	// run moves blocks for about d and then checks one block of each file. The time
	// that it reports does not include preparing buffers and checking.
	run(ctx context.Context, d time.Duration, round int) (sample, error)
	close() error
}

// Names of contenders.
const (
	nameRing    = "ring"
	nameSums    = "checksums" // rings of a daemon that keeps them
	nameScraped = "scraped"   // rings while the daemon's metrics are read
	nameRestart = "restart"   // rings that outlive their daemon
	nameMount   = "mount"
	namePlain   = "plain"
	nameFio     = "fio"
)

// sample is the outcome of one run.
type sample struct {
	requests int64
	elapsed  time.Duration
}

// together runs n workers at the same time. They start together, when all are on their
// threads, and the run lasts until the last one has finished.
func together(n int, worker func(i int, start <-chan struct{}) (requests int64, err error)) (sample, error) {
	start := make(chan struct{})
	var (
		wg, ready sync.WaitGroup
		mu        sync.Mutex
		total     sample
		failed    error
	)
	for i := range n {
		wg.Add(1)
		ready.Add(1)
		go func() {
			defer wg.Done()
			ready.Done()
			requests, err := worker(i, start)
			mu.Lock()
			defer mu.Unlock()
			total.requests += requests
			if failed == nil {
				failed = err
			}
		}()
	}
	ready.Wait()
	began := time.Now()
	close(start)
	wg.Wait()
	total.elapsed = time.Since(began)
	return total, failed
}
