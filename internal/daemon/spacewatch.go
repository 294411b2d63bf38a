package daemon

import (
	"context"
	"log/slog"
	"time"
)

// spaceEvery is how often the daemon looks whether the disk is full: where the kernel writes files of the mount itself, it hears
// of no write that fails. sayEvery is how often it says so.
const (
	spaceEvery = 2 * time.Second
	sayEvery   = 10 * time.Minute
)

// watchSpace says in the log when the file system is full, and when it has room again, until stop is called, which waits for it.
func watchSpace(r *readiness, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		every := time.NewTicker(spaceEvery)
		defer every.Stop()
		var full bool
		var said time.Time
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			within, done := context.WithTimeout(ctx, spaceEvery)
			s, err := r.space.look(within)
			done()
			if err != nil {
				continue // health looks after a file system that does not answer
			}
			switch why := r.roomy(ctx); {
			case why == nil && full:
				full, said = false, time.Time{}
				log.Info("the data directory's file system has room again", "free", s.freeBytes)
			case why != nil && time.Since(said) >= sayEvery:
				full, said = true, time.Now()
				log.Error("the data directory's file system is full", "err", why, "metric", "kv3fs_data_filesystem_free_bytes")
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
