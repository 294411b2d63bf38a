package pagesbench

import (
	"context"
	"slices"
	"time"
)

// Latency holds how long a single client waits, in milliseconds.
type Latency struct {
	P50Ms float64 `json:"p50_ms"`
	P99Ms float64 `json:"p99_ms"`
}

func latencyOf(waits []time.Duration) Latency {
	if len(waits) == 0 {
		return Latency{}
	}
	slices.Sort(waits)
	at := func(percent int) float64 {
		return waits[(len(waits)-1)*percent/100].Seconds() * 1000
	}
	return Latency{at(50), at(99)}
}

// waits measures operations of the first client, one after the other.
func (c *clientGroup) waits(ctx context.Context, d time.Duration, do func(*client) error) (waits []time.Duration, err error) {
	alone := clientGroup{service: c.service, pages: c.pages, clients: c.clients[:1]}
	_, err = alone.run(ctx, d, func(cl *client) error {
		began := time.Now()
		if err := do(cl); err != nil {
			return err
		}
		waits = append(waits, time.Since(began))
		return nil
	})
	return waits, err
}
