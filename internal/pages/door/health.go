package door

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/pages"
)

// healthz says that the process is alive and serves HTTP.
func (d *Door) healthz(w http.ResponseWriter) { send(w, http.StatusOK, []byte(`{"status":"ok"}`)) }

// readyz says whether the book is open and can write.
func (d *Door) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), d.limits.Work)
	defer cancel()
	if err := d.ready(ctx); err != nil {
		refuse(w, refusal{http.StatusServiceUnavailable, err.Error()})
		return
	}
	send(w, http.StatusOK, []byte(`{"status":"ready"}`))
}

func (d *Door) ready(ctx context.Context) error {
	if _, err := d.book.Stat(ctx); err != nil {
		return err
	}
	if err := d.writes.failing(time.Now()); err != nil {
		return err
	}
	return d.writes.look(d.probe)
}

// writes remembers how the last change of the book went.
type writes struct {
	mu       sync.Mutex
	err      error // of the last change; nil: it was made
	at       time.Time
	reported time.Time
	silent   int // failures since then

	looking sync.Mutex
	looked  time.Time // when the disk was probed last
	found   error
}

const (
	// doubtTime is how long a failed change counts against readiness when no
	// other is tried.
	doubtTime = 30 * time.Second
	// reportEvery bounds how often failures are logged.
	reportEvery = 10 * time.Second
	// lookEvery bounds how often the disk is probed, whoever asks.
	lookEvery = time.Second
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

// look probes the disk, or remembers what it found a moment ago. A disk that hangs
// keeps one question, not all.
func (w *writes) look(probe func() error) error {
	if probe == nil {
		return nil
	}
	if !w.looking.TryLock() {
		return fmt.Errorf("%w: its disk has not answered yet", pages.ErrUnavailable)
	}
	defer w.looking.Unlock()
	if time.Since(w.looked) >= lookEvery {
		w.found = nil
		if err := probe(); err != nil {
			w.found = fmt.Errorf("%w: %w", pages.ErrUnavailable, err)
		}
		w.looked = time.Now()
	}
	return w.found
}
