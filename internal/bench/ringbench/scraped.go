package ringbench

import (
	"context"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// scraped is the ring while the daemon is watched: by Prometheus and an open dashboard.
type scraped struct {
	*ringContender
	daemon *measure.Daemon
}

func (s scraped) name() string { return nameScraped }

// close leaves the ring to its own contender.
func (s scraped) close() error { return nil }

func (s scraped) run(ctx context.Context, d time.Duration, round int) (done sample, err error) {
	err = watched(ctx, s.daemon, func() error {
		done, err = s.ringContender.run(ctx, d, round)
		return err
	})
	return done, err
}
