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
	at      time.Time // of the end of the last look, also of one that failed; zero: there was none
}

const (
	// findingsAge is for how long nobody looks again: a look costs a second of a processor or two.
	findingsAge = 10 * time.Minute
	failureAge  = time.Minute // of a look that failed
	lookTime    = time.Minute
	mostFound   = 200
	topFound    = 3
)

// get returns what was found last. If that is old it has the doctor look, and waits for that until ctx ends.
func (f *findings) get(ctx context.Context) api.Findings {
	f.mu.Lock()
	running, age := f.running, findingsAge
	if f.last.Error != "" {
		age = failureAge
	}
	old := f.at.IsZero() || time.Since(f.at) > age
	if running == nil && f.look != nil && f.ctx.Err() == nil && old {
		running = make(chan struct{})
		f.running = running
		f.work.Go(f.run)
	}
	f.mu.Unlock()
	if old && running != nil {
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

// run has the doctor look. Where it cannot, what it found before stays, with the error.
func (f *findings) run() {
	ctx, cancel := context.WithTimeout(f.ctx, lookTime)
	defer cancel()
	found, err := f.look(ctx)
	now := time.Now()
	is := api.Findings{Checked: &now, Findings: found[:min(len(found), mostFound)]}
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
	if err != nil {
		if f.last.Checked != nil {
			is = f.last
		}
		is.Error = err.Error()
	}
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
	s := &api.Summary{Checked: *is.Checked, Error: is.Error, Warnings: is.Warnings, Failures: is.Failures, Top: []api.Finding{}}
	for _, one := range is.Findings {
		if len(s.Top) < topFound && (one.Status == api.FindingWarning || one.Status == api.FindingFailure) {
			s.Top = append(s.Top, one)
		}
	}
	return s
}
