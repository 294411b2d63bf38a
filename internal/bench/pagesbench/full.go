package pagesbench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Full holds the figures of a service whose pages all have keys.
type Full struct {
	Keys           int     `json:"keys"`
	ResidentMiB    float64 `json:"resident_mib"`             // when it was filled
	MiBPerMillion  float64 `json:"resident_mib_per_million"` // keys, without the memory of the empty service
	RestartSeconds float64 `json:"restart_s,omitempty"`      // from kill -9 and exec to the answer that a key is there
	RestartedMiB   float64 `json:"restarted_resident_mib,omitempty"`
}

// fillLimit bounds filling a service.
const fillLimit = 10 * time.Minute

// measureFull fills a fresh service without ranks, and restarts it if its state is
// durable.
func measureFull(ctx context.Context, d dialect, s *service, clients, batch, pages int) (f Full, err error) {
	empty, err := s.residentBytes()
	if err != nil {
		return f, err
	}
	if err := fill(ctx, d, s.to, clients, batch, pages); err != nil {
		return f, fmt.Errorf("%s: fill: %w", s.name, err)
	}
	full, err := s.residentBytes()
	if err != nil {
		return f, err
	}
	f.Keys = pages / batch * batch
	f.ResidentMiB = float64(full) / (1 << 20)
	f.MiBPerMillion = float64(full-empty) / (1 << 20) / float64(f.Keys) * 1e6
	if s.name == nameReference {
		return f, nil
	}

	s.child.Kill()
	took, err := s.launch(ctx, func(c *conn) error {
		asking := client{d: d, to: s.to, batch: batch, conn: c}
		return asking.find(0)
	})
	if err != nil {
		return f, err
	}
	f.RestartSeconds = took.Seconds()
	restarted, err := s.residentBytes()
	f.RestartedMiB = float64(restarted) / (1 << 20)
	return f, err
}

// fill stores the keys 0 to pages, without an incomplete last batch, with many clients.
func fill(ctx context.Context, d dialect, to target, clients, batch, pages int) error {
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i := range clients {
		cl, err := newClient(d, to, i, batch, nil)
		if err != nil {
			errs[i] = err
			break
		}
		errs[i] = cl.conn.until(time.Now().Add(fillLimit))
		if i == 0 && errs[i] == nil {
			errs[i] = cl.initialize(int64(pages))
		}
		wg.Go(func() {
			for n := i; n < pages/batch && errs[i] == nil && ctx.Err() == nil; n += clients {
				_, errs[i] = cl.store(uint64(n * batch))
			}
			errs[i] = errors.Join(errs[i], cl.conn.close())
		})
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}
