package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin/api"
)

// findings keep what the doctor found last. It looks when somebody asks and that is old; nobody has to wait for it.
type findings struct {
	look func(context.Context) ([]api.Finding, error) // nil: there is none
	ctx  context.Context                              // ends with the daemon
	work *sync.WaitGroup

	mu      sync.Mutex
	running chan struct{} // closed at the end of the look under way; nil: there is none
	last    api.Findings
	at      time.Time // of the end of the last look; zero: there was none
}

const (
	// findingsAge is for how long nobody looks again: a look costs a second of a processor or two.
	findingsAge = 10 * time.Minute
	lookTime    = time.Minute
	mostFound   = 200
	topFound    = 3
)

// get returns what was found last, and has the doctor look if that is old. It waits for the first look until ctx ends.
func (f *findings) get(ctx context.Context) api.Findings {
	f.mu.Lock()
	running := f.running
	if running == nil && f.look != nil && f.ctx.Err() == nil && (f.at.IsZero() || time.Since(f.at) > findingsAge) {
		running = make(chan struct{})
		f.running = running
		f.work.Go(f.run)
	}
	first := f.at.IsZero()
	f.mu.Unlock()
	if first && running != nil {
		select {
		case <-running:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	is := f.last
	is.Running = f.running != nil
	if is.Findings == nil {
		is.Findings = []api.Finding{}
	}
	return is
}

func (f *findings) run() {
	ctx, cancel := context.WithTimeout(f.ctx, lookTime)
	defer cancel()
	found, err := f.look(ctx)
	now := time.Now()
	is := api.Findings{Checked: &now, Findings: found[:min(len(found), mostFound)]}
	if err != nil {
		is.Error = err.Error()
	}
	for _, one := range found {
		switch one.Status {
		case api.FindingWarning:
			is.Warnings++
		case api.FindingFailure:
			is.Failures++
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.running)
	f.last, f.at, f.running = is, now, nil
}

// summary returns it in short; nil: nobody has looked yet.
func (f *findings) summary() *api.Summary {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	is := f.get(ctx)
	if is.Checked == nil {
		return nil
	}
	s := &api.Summary{Checked: *is.Checked, Warnings: is.Warnings, Failures: is.Failures, Top: []api.Finding{}}
	for _, one := range is.Findings {
		if len(s.Top) < topFound && (one.Status == api.FindingWarning || one.Status == api.FindingFailure) {
			s.Top = append(s.Top, one)
		}
	}
	return s
}
