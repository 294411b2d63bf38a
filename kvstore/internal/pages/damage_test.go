package pages

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// A damaged block that cannot be deleted blocks the next Save, so the error is not a
// miss. All of its shards get the same error.
func TestDamageThatCannotBeDeleted(t *testing.T) {
	h := newHost(t, pageservice.Options{})
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

// A page that another client confirmed and never wrote contains no block.
func TestGarbageOfAnother(t *testing.T) {
	s := mustOpen(t, newHost(t, pageservice.Options{}).options(t.TempDir(), 40))
	stored(t, s, keysOf(0, 4)...)
	given, err := s.service.reserve(t.Context(), keysOf(10, 2))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.service.confirm(t.Context(), keysOf(10, 2), []int64{given[0].page, given[1].page}); err != nil {
		t.Fatal(err)
	}
	for _, err := range load(t, s, keysOf(10, 2)...) {
		if !errors.Is(err, kv.ErrCorrupt) {
			t.Error(err)
		}
	}
	if got := s.Stats().QuarantinedBlocks; got != 2 {
		t.Errorf("%d blocks were quarantined", got)
	}
	stored(t, s, keysOf(10, 2)...)
	there(t, s, append(keysOf(0, 4), keysOf(10, 2)...)...)
}

// The file is cut short while it is open. Blocks beyond the new end are misses and can
// be saved again.
func TestTheFileIsCutShort(t *testing.T) {
	for name, direct := range map[string]bool{"buffered": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			o := newHost(t, pageservice.Options{}).options(t.TempDir(), 40)
			o.DirectIO = direct
			s := mustOpen(t, o)
			stored(t, s, keysOf(0, 8)...)
			end := s.label.at(3) + layout.ShardBytes + 17
			if err := os.Truncate(o.File, end); err != nil {
				t.Fatal(err)
			}
			lost := 0
			for _, err := range load(t, s, keysOf(0, 8)...) {
				if err != nil && !errors.Is(err, kv.ErrCorrupt) {
					t.Error(err)
				}
				if err != nil {
					lost++
				}
			}
			if lost < 4*layout.Shards() {
				t.Errorf("%d shards were missed", lost)
			}
			stored(t, s, keysOf(0, 8)...)
			there(t, s, keysOf(0, 8)...)
		})
	}
}

// badPage is an engine that cannot read the page file at some offset.
type badPage struct {
	transfer.Engine
	at    atomic.Int64
	label func() // called before something reads the label
}

func (b *badPage) Do(ctx context.Context, ops []transfer.Op) {
	for _, op := range ops {
		if !op.Write && op.Offset == 0 && b.label != nil {
			b.label()
		}
		if !op.Write && op.Offset == b.at.Load() {
			op.Done(0, syscall.EIO)
			continue
		}
		b.Engine.Do(ctx, []transfer.Op{op})
	}
}

// A block that cannot be read, while the rest of the file can, is deleted when it is saved again, into another page.
func TestUnreadableBlockHeals(t *testing.T) {
	for name, offset := range map[string]int64{"shard": 0, "record": headAt(layout)} {
		t.Run(name, func(t *testing.T) {
			bad := &badPage{Engine: posix.New(posix.Options{})}
			o := newHost(t, pageservice.Options{}).options(t.TempDir(), 40)
			o.Engine = bad
			s := mustOpen(t, o)
			stored(t, s, keysOf(0, 4)...)
			pages, err := s.service.locate(t.Context(), keysOf(1, 1))
			if err != nil {
				t.Fatal(err)
			}
			bad.at.Store(s.label.at(pages[0]) + offset)
			for _, err := range load(t, s, keysOf(1, 1)...) {
				if err != nil && !errors.Is(err, syscall.EIO) {
					t.Error(err)
				}
			}
			found := make([]bool, 1)
			if err := s.Lookup(t.Context(), keysOf(1, 1), found); err != nil || found[0] {
				t.Errorf("found %v, %v", found, err)
			}
			stored(t, s, keysOf(1, 1)...)
			there(t, s, keysOf(0, 4)...)
		})
	}
}

// While a save looks whether a block can be read, its page becomes readable, another client saves it into another page,
// or the save is cancelled. Then its key stays, and other batches try for themselves.
func TestUnreadableBlockWhileItIsLookedAt(t *testing.T) {
	for name, meanwhile := range map[string]func(other *Store, bad *badPage, cancel func()){
		"readable again": func(_ *Store, bad *badPage, _ func()) { bad.at.Store(-1) },
		"saved by another": func(other *Store, _ *badPage, _ func()) {
			if err := other.Delete(t.Context(), keysOf(1, 1)); err != nil {
				t.Error(err)
			}
			stored(t, other, keysOf(1, 1)...)
		},
		"cancelled": func(_ *Store, _ *badPage, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			bad := &badPage{Engine: posix.New(posix.Options{})}
			o := newHost(t, pageservice.Options{}).options(t.TempDir(), 40)
			other := mustOpen(t, o)
			o.Engine = bad
			s := mustOpen(t, o)
			stored(t, s, keysOf(1, 1)...)
			pages, err := s.service.locate(t.Context(), keysOf(1, 1))
			if err != nil {
				t.Fatal(err)
			}
			bad.at.Store(s.label.at(pages[0]))
			if err := load(t, s, keysOf(1, 1)...)[0]; !errors.Is(err, syscall.EIO) {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			bad.label = func() { meanwhile(other, bad, cancel) }
			got := s.reserve(ctx, keysOf(1, 1))[key(1)]
			switch cancelled := ctx.Err() != nil; {
			case cancelled != got.left:
				t.Errorf("cancelled %v, another batch tries again %v", cancelled, got.left)
			case !cancelled && got.err != errPresent:
				t.Error(got.err)
			}
			bad.at.Store(-1)
			there(t, other, keysOf(1, 1)...)
			if n := s.Stats().QuarantinedBlocks; n > 0 {
				t.Errorf("%d blocks were deleted", n)
			}
		})
	}
}
