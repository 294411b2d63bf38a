package httpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// healthz answers that the process is alive and serves HTTP.
func (s *Server) healthz(w http.ResponseWriter) { send(w, http.StatusOK, []byte(`{"status":"ok"}`)) }

// readyz answers whether the data directory works, and whether the index is open and can write, be it on another host.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Work)
	defer cancel()
	forwarded := isForwarded(r)
	var err error
	if s.health != nil && !forwarded { // the other host has looked at its own
		err = s.health()
	}
	if err == nil {
		err = s.ready(ctx, forwarded)
	}
	if err != nil {
		refuse(w, refusal{http.StatusServiceUnavailable, err.Error()})
		return
	}
	send(w, http.StatusOK, []byte(`{"status":"ready"}`))
}

// Ready returns why the index cannot be used, be it on another host; the data directory does not matter.
func (s *Server) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Work)
	defer cancel()
	return s.ready(ctx, false)
}

func (s *Server) ready(ctx context.Context, forwarded bool) error {
	source := s.source.Load()
	if source.Leader != nil && !forwarded {
		return s.leader.ask(ctx, source)
	}
	x, err := source.index()
	if err != nil {
		return err
	}
	// A query without keys fails only if the index is closed.
	if _, err := x.Exists(ctx, pageservice.Space{}, nil); err != nil {
		return err
	}
	if err := source.check(); err != nil {
		return err
	}
	if err := s.writes.failing(time.Now()); err != nil {
		return err
	}
	return s.disk.check(s.probe)
}

// leaderReady remembers whether the leader was ready, so that it is asked once in probeEvery, whatever the number of clients, which
// need no token for that.
type leaderReady struct {
	one   chan struct{} // holds a token while a caller uses the fields below
	asked time.Time     // when the answer below was asked for
	of    *Source
	err   error
}

// ask asks the leader whether it is ready. Callers that wait for another one's question share its answer.
func (l *leaderReady) ask(ctx context.Context, source *Source) error {
	select {
	case l.one <- struct{}{}:
		defer func() { <-l.one }()
	case <-ctx.Done():
		return errors.New("the leader does not say whether it is ready")
	}
	if l.of == source && time.Since(l.asked) < probeEvery {
		return l.err
	}
	now := time.Now()
	a, err := source.Leader.Forward(ctx, Forwarded{Method: http.MethodGet, Path: "/readyz", Again: true})
	if err == nil && a.Status != http.StatusOK {
		var said struct{ Detail string }
		_ = json.Unmarshal(a.Body, &said) // what is not ours has no detail
		err = fmt.Errorf("the leader is not ready: %s (%d)", said.Detail, a.Status)
	}
	if ctx.Err() == nil {
		l.asked, l.of, l.err = now, source, err
	}
	return err
}

// writes remembers the outcome of the last change of the index.
type writes struct {
	mu       sync.Mutex
	err      error // of the last change; nil if it was made
	at       time.Time
	reported time.Time
	silent   int // failures since reported
}

const (
	// doubtTime is how long a failed change counts against readiness if no other
	// follows.
	doubtTime = 30 * time.Second
	// reportEvery bounds how often failures are logged.
	reportEvery = 10 * time.Second
	// probeEvery bounds how often the disk is probed, whatever the number of clients.
	probeEvery = time.Second
	// probeLimit is how long the disk may take to answer a probe.
	probeLimit = 3 * time.Second
)

// worked records that a change was made.
func (w *writes) worked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = nil
}

// failing returns why changes fail, if they do.
func (w *writes) failing(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil || now.Sub(w.at) > doubtTime {
		return nil
	}
	return w.err
}

// failed records that the index could not write, and logs it unless that was done less
// than reportEvery ago.
func (w *writes) failed(log *slog.Logger, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err, w.at = err, time.Now()
	if w.silent++; time.Since(w.reported) < reportEvery {
		return
	}
	log.Error("page index cannot write, engines get 503 and try again", "err", err, "requests_refused", w.silent)
	w.reported, w.silent = time.Now(), 0
}

// disk remembers the outcome of the last probe of the disk under the index.
type disk struct {
	mu      sync.Mutex
	began   time.Time // when the last probe began
	probing bool      // it has not ended yet
	found   error     // the outcome of the last one that ended
}

// errHangs: a disk that does not answer takes no writes.
var errHangs = fmt.Errorf("%w: its disk does not answer", pageservice.ErrUnavailable)

// check probes the disk, or returns the outcome of a moment ago. On a disk that hangs,
// one probe hangs, and callers wait no longer than probeLimit.
func (d *disk) check(probe func() error) error {
	if probe == nil {
		return nil
	}
	answer, err := d.begin(probe)
	if answer == nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-time.After(probeLimit):
		return errHangs
	}
}

// begin starts a probe, or returns an outcome that needs none.
func (d *disk) begin(probe func() error) (answer chan error, known error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch since := time.Since(d.began); {
	case d.probing && since >= probeLimit:
		return nil, errHangs
	case d.probing || since < probeEvery:
		return nil, d.found
	}
	d.began, d.probing = time.Now(), true
	answer = make(chan error, 1)
	go func() {
		err := probe()
		if err != nil {
			err = fmt.Errorf("%w: %w", pageservice.ErrUnavailable, err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.probing, d.found = false, err
		answer <- err
	}()
	return answer, nil
}
