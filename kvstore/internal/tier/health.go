package tier

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// health knows whether the far store answers. A call that timed out, or was not connected, says that it does not;
// from then on nobody waits for it, until the watch has succeeded. Names may be there while bytes are not, so it does
// not only look something up, but also reads what was read before, or could not be.
type health struct {
	far    kv.Store
	name   string
	logger *slog.Logger

	mu      sync.Mutex
	why     error         // nil while it answers
	changed chan struct{} // closed and replaced when it stops and begins to answer
	failing bool          // lookups fail, and the log says so

	good, hung piece // that were read last, and that a Load has waited for in vain, if any since it answers
	proofs     int   // attempts to read since then
	unproven   int   // how many of these in a row have shown nothing; the watch's own
}

// piece is a shard of a block.
type piece struct {
	key   kv.Key
	index int
	is    bool
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
	if !kv.IsAway(err) {
		return
	}
	h.mu.Lock()
	first := h.why == nil
	if first {
		h.set(fmt.Errorf("%w: %s is not asked until it answers again", kv.ErrTimeout, h.name))
	}
	h.mu.Unlock()
	if first { // who reads the log may be slow
		h.logger.Warn("far store does not answer; only blocks that are near are found", "store", h.name, "err", err)
	}
}

// noteLoad looks at how the load of a shard has ended.
func (h *health) noteLoad(shard kv.Shard, err error) {
	h.note(err)
	if err != nil && !kv.IsAway(err) {
		return
	}
	this := piece{shard.Key, shard.Index, true}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.good = this
	case !h.hung.is:
		h.hung, h.proofs = this, 0
	}
}

// enoughMisses is how often in a row a store must answer without showing bytes to be believed: what could not be read may be gone for good.
const enoughMisses = 3

// proven reports whether bytes can be read, as far as there is something to read. It reads what could not be read, and
// in turn with that what could be: one of them may be gone, or hang alone. That it is gone, or refused, needs no bytes, and so
// proves little.
func (h *health) proven(ctx context.Context) bool {
	h.mu.Lock()
	all := []piece{h.hung, h.good}
	if h.proofs++; h.proofs%2 == 0 {
		slices.Reverse(all)
	}
	h.mu.Unlock()
	all = slices.DeleteFunc(all, func(p piece) bool { return !p.is })
	if len(all) == 0 {
		return true
	}
	for _, p := range all {
		err := h.read(ctx, p)
		if err == nil {
			return true
		}
		if ctx.Err() != nil || kv.IsAway(err) {
			h.unproven = 0
			return false
		}
	}
	h.unproven++
	return h.unproven >= enoughMisses
}

func (h *health) read(ctx context.Context, p piece) error {
	t, err := h.far.Load(ctx, []kv.Shard{{Key: p.key, Index: p.index, Buf: make([]byte, h.far.Layout().ShardBytes)}})
	if err != nil {
		return err
	}
	return outcome(t)
}

// sent notes a block that the far store has taken: it can be read.
func (h *health) sent(key kv.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.good = piece{key, 0, true}
}

// lookedUp notes how a lookup has ended, so that the log has the first of many that fail.
func (h *health) lookedUp(err error) {
	h.note(err)
	h.mu.Lock()
	first := err != nil && h.why == nil && !h.failing
	h.failing = err != nil
	h.mu.Unlock()
	if first {
		h.logger.Warn("lookup in far store failed; only blocks that are near are found", "store", h.name, "err", err)
	}
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
		if h.far.Lookup(ctx, make([]kv.Key, 1), make([]bool, 1)) == nil && h.proven(ctx) {
			h.mu.Lock()
			h.set(nil)
			h.hung, h.unproven = piece{}, 0
			h.mu.Unlock()
			h.logger.Info("far store answers again", "store", h.name)
		}
	}
}
