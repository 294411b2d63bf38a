package sums

import (
	"io"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// badRange is a file of which some bytes cannot be read.
type badRange struct {
	io.ReaderAt
	from, to int64
}

func (b badRange) ReadAt(p []byte, at int64) (int, error) {
	switch {
	case at >= b.to || at+int64(len(p)) <= b.from:
		return b.ReaderAt.ReadAt(p, at)
	case at >= b.from:
		return 0, syscall.EIO
	}
	n, err := b.ReaderAt.ReadAt(p[:b.from-at], at)
	if err == nil {
		err = syscall.EIO
	}
	return n, err
}

// What cannot be read of a log costs its records, and no others: a store that finds blocks, or
// opens, does not fail because of it.
func TestUnreadableRecords(t *testing.T) {
	layered := Shape{kv.Fingerprint{9}, 4096, 2}
	a := openLogs(t, t.TempDir(), layered)
	const records = 4000 // of 80 bytes
	keyOf := func(n int) kv.Key { return kv.Key{1, byte(n), byte(n >> 8)} }
	for n := range records {
		put(t, a, keyOf(n), []uint64{1, uint64(n)})
	}
	own := a.logs[a.own]
	for name, bad := range map[string]badRange{
		"a page":      {from: 8192, to: 12288},
		"the first":   {from: 0, to: 4096},
		"the rest":    {from: 8192, to: 1 << 40},
		"all":         {from: 0, to: 1 << 40},
		"many pages":  {from: 4096, to: 200000},
		"the last":    {from: own.end - 40, to: 1 << 40},
		"nothing yet": {from: 1 << 40, to: 1 << 41},
	} {
		t.Run(name, func(t *testing.T) {
			bad.ReaderAt = own.f
			again := &log{f: own.f, data: bad}
			found := map[kv.Key]bool{}
			if err := again.read(func(_ int64, r *record) { found[r.key] = true }); err != nil {
				t.Fatal(err)
			}
			if again.end%alignBytes != 0 || again.end > own.end {
				t.Errorf("reading ends at %d of %d", again.end, own.end)
			}
			lost := 0
			for n := range records {
				if at := int64(n) * 80; !found[keyOf(n)] && (at+80 <= bad.from || at >= 2*bad.to) {
					lost++
				}
			}
			if lost > 0 {
				t.Errorf("%d records that can be read are lost", lost)
			}
		})
	}

	// The same log as another process reads it, and while a store uses it.
	b := openLogs(t, filepath.Dir(a.dir), layered)
	find(t, b, keyOf(0))
	for _, l := range b.logs {
		l.data = badRange{l.f, 0, 1 << 40}
	}
	put(t, a, kv.Key{2}, []uint64{5, 6})
	for _, key := range []kv.Key{keyOf(0), {2}, {3}} {
		if found, err := b.Again(key, time.Now()); err != nil || len(found.Sums) > 0 {
			t.Errorf("%s: %v, %v", key, found, err)
		}
	}
	put(t, b, keyOf(0), []uint64{7, 8})
	forget(t, b, keyOf(1))
}
