package index

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// On a full disk, changes fail, queries succeed, and nothing is lost. When there is space
// again, changes succeed.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a small tmpfs, which needs root")
	}
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=2m"); err != nil {
		t.Skip("cannot mount a tmpfs:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(disk, "pages")
	b := benchIndex(t, dir, 1<<20)
	var known []string
	batch := func(i int) []string {
		keys := make([]string, 64)
		for k := range keys {
			keys[k] = fmt.Sprintf("%064x", i*64+k)
		}
		return keys
	}
	// store saves a batch, unless the disk is full.
	store := func(i int) error {
		keys := batch(i)
		grants, err := b.Reserve(ctx, benchSpace, 0, keys, true)
		if err != nil {
			return err
		}
		written := make([]pageservice.Placed, len(keys))
		for i, g := range grants {
			written[i] = pageservice.Placed{Key: keys[i], Page: g.Page}
		}
		if _, err := b.Confirm(ctx, benchSpace, 0, written, nil); err != nil {
			return err
		}
		known = append(known, keys...)
		return nil
	}
	mustKnow := func() {
		t.Helper()
		found, err := b.Exists(ctx, benchSpace, known)
		if err != nil {
			t.Fatal(err)
		}
		for i := range found {
			if !found[i] {
				t.Fatalf("lost key %d of %d", i, len(known))
			}
		}
		if err := b.Check(); err != nil {
			t.Fatal(err)
		}
	}

	next, failed := 0, 0
	for ; failed < 5; next++ {
		if next > 10000 {
			t.Fatal("the disk does not get full")
		}
		if err := store(next); err != nil {
			if !errors.Is(err, pageservice.ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			failed++
			mustKnow()
		}
	}
	t.Logf("full with %d keys", len(known))

	// A restart on a full disk.
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	mustKnow()
	if err := store(next); !errors.Is(err, pageservice.ErrUnavailable) {
		t.Fatal(err)
	}

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if next++; store(next) != nil {
			t.Fatal("there is space, and a change fails")
		}
	}
	mustKnow()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err = open(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	mustKnow()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
