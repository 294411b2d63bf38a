package ringbench

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
)

// dialLimit bounds how long the daemon is asked for its API.
const dialLimit = 15 * time.Second

// page has what an open dashboard asks for, and how often. TestAsksAsDashboard compares it with the dashboard's own.
func page() map[string]time.Duration {
	return map[string]time.Duration{
		"status": 2 * time.Second, "history": 2 * time.Second, "log": 2 * time.Second, "clients": 5 * time.Second, "hits": 10 * time.Second, "keeper": 10 * time.Second,
		"pages": 10 * time.Second, "hosts": 10 * time.Second, "curve": 30 * time.Second, "usage": 30 * time.Second, "findings": 30 * time.Second,
	}
}

// watched runs fn while a daemon that StartMetered has started is watched: all metrics are read once a second, as by Prometheus, and its
// API is asked for what an open dashboard asks for.
func watched(ctx context.Context, d *measure.Daemon, fn func() error) error {
	hosts, err := filepath.Glob(filepath.Join(d.Data, kv3fs.StateDir, "hosts", "*"))
	if err != nil {
		return err
	}
	api, err := admin.Dial(ctx, hosts, dialLimit)
	if err != nil {
		return fmt.Errorf("bench: ask the daemon as a dashboard does: %w", err)
	}
	defer api.Close()
	ctx, stop := context.WithCancel(ctx)
	failures := make(chan error, 1)
	go func() { failures <- watch(ctx, d, api) }()
	err = fn()
	stop()
	if failed := <-failures; err == nil && failed != nil {
		err = fmt.Errorf("bench: watch the daemon: %w", failed)
	}
	return err
}

// watch reads and asks until ctx ends, all at once and then again when it is time.
func watch(ctx context.Context, d *measure.Daemon, api *admin.Client) error {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	measured := int64(0) // of the history: the dashboard asks for what is new
	for second := 0; ; second++ {
		err := d.Scrape(ctx)
		for path, period := range page() {
			if err != nil || second%int(period/time.Second) != 0 {
				continue
			}
			var answer struct{ Measured int64 }
			var rest json.RawMessage
			into := any(&rest)
			if path == "history" {
				path, into = fmt.Sprint("history?after=", measured), &answer
			}
			if err = api.Show(ctx, path, into); into == &answer {
				measured = answer.Measured
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
	}
}
