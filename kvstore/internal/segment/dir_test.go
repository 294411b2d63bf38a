package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// refused checks that Open fails with an error that has these words.
func refused(t *testing.T, o Options, names ...string) error {
	t.Helper()
	s, err := Open(o)
	if err == nil {
		s.Close()
		t.Fatal("Open succeeded")
	}
	for _, name := range names {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%v: does not mention %q", err, name)
		}
	}
	return err
}

func TestDirectoryOwner(t *testing.T) {
	t.Run("a directory with other files is left alone", func(t *testing.T) {
		o := options(t.TempDir(), small, 3, 4)
		put(t, touch(t, o.Dir, "thesis.txt"), 0, []byte("years of work"))
		refused(t, o, o.Dir, "thesis.txt")
		if all, _ := os.ReadDir(o.Dir); len(all) != 1 {
			t.Errorf("%v was left in it", all)
		}
	})
	t.Run("one process owns it", func(t *testing.T) {
		o := options(t.TempDir(), small, 3, 4)
		s := open(t, o)
		save(t, s, keyOf(0))
		refused(t, o, o.Dir, fmt.Sprintf("process %d (%s)", os.Getpid(), filepath.Base(os.Args[0])))
		loads(t, s, keyOf(0))
		loads(t, reopen(t, s, o), keyOf(0))
	})
	t.Run("another layout", func(t *testing.T) {
		o := options(t.TempDir(), small, 3, 4)
		s := open(t, o)
		save(t, s, keyOf(0))
		s.Close()
		other := o
		other.Layout = kv.Layout{BlockBytes: 3072, ShardBytes: 512}
		refused(t, other, "shards of 1024", "shards of 512", "another directory")
		other = o
		other.SegmentBytes += pageBytes
		refused(t, other, fmt.Sprint(o.SegmentBytes), fmt.Sprint(other.SegmentBytes))
		other.SegmentBytes = 0
		loads(t, open(t, other), keyOf(0))
	})
	t.Run("a crash while it was made", func(t *testing.T) {
		o := options(t.TempDir(), small, 3, 4)
		touch(t, o.Dir, lockName)
		touch(t, o.Dir, newSuperName)
		save(t, open(t, o), keyOf(0))
	})
	t.Run("options that make no sense", func(t *testing.T) {
		for want, change := range map[string]func(*Options){
			"block_size":     func(o *Options) { o.Layout.BlockBytes = 0 },
			"capacity of 0":  func(o *Options) { o.CapacityBytes = 0 },
			"negative":       func(o *Options) { o.SegmentBytes = -1 },
			"carry fraction": func(o *Options) { o.CarryFraction = 0.9 },
			"checksums":      func(o *Options) { o.Checksums = "maybe" },
			"at least":       func(o *Options) { o.SegmentBytes = pageBytes },
			"at least 3":     func(o *Options) { o.CapacityBytes = o.SegmentBytes * 2 },
			"no directory":   func(o *Options) { o.Dir = "" },
			"not a directory": func(o *Options) {
				o.Dir = touch(t, t.TempDir(), "file")
			},
		} {
			o := options(t.TempDir(), small, 3, 4)
			change(&o)
			refused(t, o, want)
		}
	})
}

func touch(t *testing.T, dir, name string) string {
	t.Helper()
	name = filepath.Join(dir, name)
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// On a full file system Open fails at once and leaves nothing behind.
func TestFullDiskShowsAtOpen(t *testing.T) {
	o := options(t.TempDir(), small, 5, 4)
	left := 3
	o.reserve = func(f *os.File, sizeBytes int64) error {
		if left--; left < 0 {
			return syscall.ENOSPC
		}
		return reserve(f, sizeBytes)
	}
	if err := refused(t, o, "5 segments", "bytes are left"); !errors.Is(err, kv.ErrFull) {
		t.Error(err)
	}
	if all, _ := os.ReadDir(o.Dir); len(all) != 0 {
		t.Errorf("%v was left", all)
	}
	o.CapacityBytes, o.SegmentBytes, left = o.CapacityBytes/2, 0, 99
	s := open(t, o)
	save(t, s, keyOf(0))
	if size := onDisk(t, o.Dir); size > o.CapacityBytes {
		t.Errorf("%d bytes on the disk, of a capacity of %d", size, o.CapacityBytes)
	}
}

// With less capacity the oldest segments are deleted, with more none is.
func TestCapacityChanges(t *testing.T) {
	const slots = 4
	o := options(t.TempDir(), small, 8, slots)
	s := open(t, o)
	for i := range 6 * slots {
		save(t, s, keyOf(i))
	}
	more := options(o.Dir, small, 12, slots)
	s = reopen(t, s, more)
	loads(t, s, keysOf(0, 6*slots)...)
	less := options(o.Dir, small, 5, slots)
	s = reopen(t, s, less)
	if size := onDisk(t, o.Dir); size > less.CapacityBytes {
		t.Errorf("%d bytes on the disk, of a capacity of %d", size, less.CapacityBytes)
	}
	f := found(t, s, keysOf(0, 6*slots)...)
	if f[0] || f[slots-1] || !f[6*slots-1] || !f[3*slots] {
		t.Errorf("found %v", f)
	}
	for i := range 10 * slots {
		save(t, s, keyOf(100+i))
	}
	loads(t, s, keysOf(100+9*slots, slots)...)
}

// The size of segments follows from the capacity, and their number is bounded.
func TestSegmentsSuitTheCapacity(t *testing.T) {
	l := kv.Layout{BlockBytes: 2 << 20, ShardBytes: 1 << 20}
	for _, c := range []struct {
		capacityBytes, atLeast, atMost int64
		segments                       [2]int
	}{
		{16 << 20, 2 << 20, 3 << 20, [2]int{5, 8}},
		{1 << 30, 60 << 20, 64 << 20, [2]int{15, 16}},
		{100 << 30, 1 << 30, 1 << 30, [2]int{99, 100}},
		{16 << 40, 16 << 30, 16 << 30, [2]int{1000, 1024}},
	} {
		size := chooseSegmentBytes(c.capacityBytes, l)
		n := segmentsFor(c.capacityBytes, size)
		if size < c.atLeast || size > c.atMost || n < c.segments[0] || n > c.segments[1] {
			t.Errorf("%d bytes: %d segments of %d", c.capacityBytes, n, size)
		}
		g, err := newGeometry(l, size)
		if err != nil {
			t.Fatal(err)
		}
		if end := g.slotAt(g.slots); end > g.indexAt() || g.indexAt()+int64(g.indexPages())*pageBytes != g.segmentBytes ||
			end+g.strideBytes+pageBytes <= g.indexAt() {
			t.Errorf("%d bytes: slots end at %d, the index begins at %d", c.capacityBytes, end, g.indexAt())
		}
	}
}
