package pages

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	book "github.com/kv3fs/kv3fs/internal/pages"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// A damaged block that cannot be deleted is in the way of the next Dump: that is no
// miss. Every shard of a block is told the same.
func TestDamageThatCannotBeDeleted(t *testing.T) {
	h := newHost(t, book.Options{})
	var refuses atomic.Bool
	middle(h, func(route string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if refuses.Load() && route == "delete_keys" {
			http.Error(w, `{"detail":"the disk is full"}`, http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
	dir := t.TempDir()
	s := mustOpen(t, h.options(dir, 40))
	stored(t, s, keysOf(0, 12)...)
	damage(t, dir, 2) // some blocks of zeros
	refuses.Store(true)
	failed := 0
	for i, err := range load(t, s, keysOf(0, 12)...) {
		if err == nil {
			continue
		}
		failed++
		var found *refused
		if errors.Is(err, kv.ErrMiss) || !errors.As(err, &found) {
			t.Errorf("shard %d: %v", i, err)
		}
	}
	if stats := s.Stats(); failed == 0 || stats.CorruptBlocks == 0 || stats.QuarantinedBlocks != 0 {
		t.Fatalf("%d shards failed, %+v", failed, stats)
	}
	refuses.Store(false)
	for i, err := range load(t, s, keysOf(0, 12)...) {
		if err != nil && !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("shard %d: %v", i, err)
		}
	}
	stored(t, s, keysOf(0, 12)...)
	there(t, s, keysOf(0, 12)...)
}
