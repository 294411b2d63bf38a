package tier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// health knows whether the far store answers. A call that timed out says that it does not;
// from then on nobody waits for it, until a lookup of the watch has succeeded.
type health struct {
	far    kv.Store
	name   string
	logger *slog.Logger

	mu      sync.Mutex
	why     error         // nil while it answers
	changed chan struct{} // closed and replaced when it stops and begins to answer
	failing bool          // lookups fail, and the log says so
}

// askAgain is how often a store that did not answer is asked.
const askAgain = time.Second

func newHealth(far kv.Store, name string, logger *slog.Logger) *health {
	return &health{far: far, name: name, logger: logger, changed: make(chan struct{})}
}

// err returns an ErrTimeout while the store does not answer.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.why
}

// change returns a channel that is closed at the next change.
func (h *health) change() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// note looks at the error of a call.
func (h *health) note(err error) {
	if !errors.Is(err, kv.ErrTimeout) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.why == nil {
		h.set(fmt.Errorf("%w: %s is not asked until it answers again", kv.ErrTimeout, h.name))
		h.logger.Warn("far store does not answer; only blocks that are near are found", "store", h.name, "err", err)
	}
}

// lookedUp notes how a lookup has ended, so that the log has the first of many that fail.
func (h *health) lookedUp(err error) {
	h.note(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if is := err != nil && h.why == nil; is && !h.failing {
		h.logger.Warn("lookup in far store failed; only blocks that are near are found", "store", h.name, "err", err)
	}
	h.failing = err != nil
}

// set says why the store is not asked, and nil that it is. The lock is held.
func (h *health) set(why error) {
	h.why = why
	close(h.changed)
	h.changed = make(chan struct{})
}

// watch asks a store that does not answer until it does.
func (h *health) watch(ctx context.Context) {
	for {
		changed, away := h.change(), h.err() != nil
		if !away {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return
			}
		}
		pause := time.NewTimer(askAgain)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		if h.far.Lookup(ctx, make([]kv.Key, 1), make([]bool, 1)) == nil {
			h.mu.Lock()
			h.set(nil)
			h.mu.Unlock()
			h.logger.Info("far store answers again", "store", h.name)
		}
	}
}
