package index

import (
	"errors"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// Nobody waits for the record that a stale rank is alive again. If the disk is full just
// then, what the rank confirms later is still visible after a restart.
func TestAStaleRankThatReturnsOnAFullDisk(t *testing.T) {
	dir, full := t.TempDir(), false
	disk := journal.Options{Commit: func(commit func() error) error {
		if full {
			return syscall.ENOSPC
		}
		return commit()
	}}
	o := Options{Options: pageservice.Options{World: 1}}
	b, err := openWith(dir, disk, o)
	if err != nil {
		t.Fatal(err)
	}
	// Rank 1 comes back with another model: rank 0 is stale until its next request.
	for _, r := range []struct{ rank, numPages int }{{0, 4}, {1, 4}, {1, 2}} {
		if _, err := b.Initialize(ctx, modelSpace, r.rank, pageservice.RankOptions{NumPages: int64(r.numPages)}); err != nil {
			t.Fatal(err)
		}
	}
	full = true
	if _, err := b.Reserve(ctx, modelSpace, 0, []string{"a"}, true); !errors.Is(err, pageservice.ErrUnavailable) {
		t.Fatalf("reserve on a full disk: %v", err)
	}
	full = false
	g, err := b.Reserve(ctx, modelSpace, 0, []string{"a"}, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: "a", Page: g[0].Page}}, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if found, err := b.Exists(ctx, modelSpace, []string{"a"}); err != nil || !found[0] {
			t.Fatal("the key is not found", found, err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if b, err = openWith(dir, disk, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
