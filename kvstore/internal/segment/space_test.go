package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A capacity that the file system has no space for is refused before anything is taken, with
// what it needs and what there is. Nothing is left behind.
func TestCapacityThatDoesNotFit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	var fs unix.Statfs_t
	if err := unix.Statfs(t.TempDir(), &fs); err != nil {
		t.Fatal(err)
	}
	l := kv.Layout{BlockBytes: 64 << 20, ShardBytes: 64 << 20}
	o := options(dir, l, 8, 4)
	o.SegmentBytes = 0
	o.CapacityBytes = 2*int64(fs.Bavail)*fs.Bsize + 16<<30
	taken := 0
	o.reserve = func(*os.File, int64) error { taken++; return unix.ENOSPC }
	s, err := Open(o)
	if err == nil {
		t.Fatal("opened", s.Close())
	}
	if !errors.Is(err, kv.ErrFull) || !strings.Contains(err.Error(), fmt.Sprint(o.CapacityBytes)) || !strings.Contains(err.Error(), "more bytes now") || !strings.Contains(err.Error(), " free: ") {
		t.Error(err)
	}
	if taken > 0 {
		t.Errorf("space was taken %d times", taken)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was left: %v", err)
	}
}

// If the space ends midway, nothing is left either, and a directory that was there stays.
func TestSpaceThatEndsMidway(t *testing.T) {
	for _, there := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "store")
		if there {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		o := options(dir, small, 6, 8)
		left := 3
		o.reserve = func(f *os.File, n int64) error {
			if left--; left < 0 {
				return unix.ENOSPC
			}
			return reserve(f, n)
		}
		if s, err := Open(o); !errors.Is(err, kv.ErrFull) {
			t.Fatal(s, err)
		}
		all, err := os.ReadDir(dir)
		if len(all) > 0 || there != (err == nil) {
			t.Errorf("was there %v: left %v, %v", there, all, err)
		}
		o.reserve = nil
		s := open(t, o)
		save(t, s, keysOf(0, 3)...)
		loads(t, s, keyOf(0))
	}
}
