package httpserver

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// healthz says that the process is alive and serves HTTP.
func (s *Server) healthz(w http.ResponseWriter) { send(w, http.StatusOK, []byte(`{"status":"ok"}`)) }

// readyz says whether the book is open and can write.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Work)
	defer cancel()
	if err := s.ready(ctx); err != nil {
		refuse(w, refusal{http.StatusServiceUnavailable, err.Error()})
		return
	}
	send(w, http.StatusOK, []byte(`{"status":"ready"}`))
}

func (s *Server) ready(ctx context.Context) error {
	// A question about nothing: whether the book is open.
	if _, err := s.index.Exists(ctx, pageservice.Space{}, nil); err != nil {
		return err
	}
	if err := s.writes.failing(time.Now()); err != nil {
		return err
	}
	return s.disk.look(s.probe)
}

// writes remembers how the last change of the book went.
type writes struct {
	mu       sync.Mutex
	err      error // of the last change; nil: it was made
	at       time.Time
	reported time.Time
	silent   int // failures since then
}

const (
	// doubtTime is how long a failed change counts against readiness when no
	// other is tried.
	doubtTime = 30 * time.Second
	// reportEvery bounds how often failures are logged.
	reportEvery = 10 * time.Second
	// lookEvery bounds how often the disk is probed, whoever asks.
	lookEvery = time.Second
	// lookPatience is how long the disk may take to answer a probe.
	lookPatience = 3 * time.Second
)

// worked notes that a change was made.
func (w *writes) worked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = nil
}

func (w *writes) failing(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil || now.Sub(w.at) > doubtTime {
		return nil
	}
	return w.err
}

// failed notes that the book could not write, and logs it unless that was done just
// now.
func (w *writes) failed(log *slog.Logger, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err, w.at = err, time.Now()
	if w.silent++; time.Since(w.reported) < reportEvery {
		return
	}
	log.Error("the page store is unavailable: engines get 503 and try again", "err", err, "requests_refused", w.silent)
	w.reported, w.silent = time.Now(), 0
}

// disk remembers what the disk under the book answered to its last probe.
type disk struct {
	mu      sync.Mutex
	began   time.Time // the last probe
	looking bool      // it has not been answered yet
	found   error     // what the one before found
}

// errHangs: a disk that does not answer is one that takes no writes.
var errHangs = fmt.Errorf("%w: its disk does not answer", pageservice.ErrUnavailable)

// look probes the disk, or tells what was found a moment ago. A disk that hangs keeps
// one probe, and nobody who asks longer than lookPatience.
func (d *disk) look(probe func() error) error {
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
	case <-time.After(lookPatience):
		return errHangs
	}
}

// begin starts a probe, or says why there is no need to.
func (d *disk) begin(probe func() error) (answer chan error, known error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch since := time.Since(d.began); {
	case d.looking && since >= lookPatience:
		return nil, errHangs
	case d.looking || since < lookEvery:
		return nil, d.found
	}
	d.began, d.looking = time.Now(), true
	answer = make(chan error, 1)
	go func() {
		err := probe()
		if err != nil {
			err = fmt.Errorf("%w: %w", pageservice.ErrUnavailable, err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.looking, d.found = false, err
		answer <- err
	}()
	return answer, nil
}
