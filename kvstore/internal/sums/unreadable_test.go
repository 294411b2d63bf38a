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

// What could not be read of a log for a while is read later, in this process's own log and in those of others.
func TestLogsAfterAnOutage(t *testing.T) {
	root := t.TempDir()
	a := openLogs(t, root, ours)
	for n := range 200 {
		put(t, a, kv.Key{1, byte(n)}, []uint64{uint64(n)})
	}
	b := openLogs(t, root, ours)
	put(t, b, kv.Key{3}, []uint64{3})
	for n := range 200 {
		put(t, a, kv.Key{2, byte(n)}, []uint64{uint64(n)})
	}
	of := func(name string) *log {
		for _, l := range b.logs {
			if l.name == name {
				return l
			}
		}
		t.Fatal("no log ", name)
		return nil
	}
	theirs, own := of(a.logs[a.own].name), b.logs[b.own]
	theirs.data = badRange{theirs.f, 0, 1 << 40}
	found, err := b.Again(kv.Key{2, 7}, time.Now())
	if err != nil || found.Known || found.Unread == nil {
		t.Errorf("while a log cannot be read: %+v, %v", found, err)
	}
	own.gap.leaveOut(0) // as if opening the logs had met it
	theirs.data = theirs.f
	for _, l := range []*log{theirs, own} {
		l.gap.next = time.Now()
	}
	for n := range 200 {
		if got := find(t, b, kv.Key{2, byte(n)}); len(got) != 1 || got[0][0] != uint64(n) {
			t.Fatalf("record %d: %v", n, got)
		}
	}
	found, err = b.Again(kv.Key{3}, time.Now())
	if err != nil || len(found.Sums) != 1 || found.Unread != nil {
		t.Errorf("of this process's own log: %+v, %v", found, err)
	}
	put(t, b, kv.Key{4}, []uint64{4}) // behind the others
	c := openLogs(t, root, ours)
	for _, key := range []kv.Key{{2, 7}, {3}, {4}} {
		if got := find(t, c, key); len(got) != 1 {
			t.Errorf("%s: %v", key, got)
		}
	}
}

// A log of which something cannot be read is not rewritten without it, unless that has lasted for a day.
func TestCompactDuringAnOutage(t *testing.T) {
	a := openLogs(t, t.TempDir(), ours)
	for n := range 200 {
		put(t, a, kv.Key{1, byte(n)}, []uint64{uint64(n)})
	}
	own := a.logs[a.own]
	own.data = badRange{own.f, 4096, 8192}
	all := func(kv.Key, bool) bool { return true }
	if err := a.Compact(all); err == nil {
		t.Error("it was compacted")
	}
	own.data = own.f
	do(t, a.Compact(all))
	for n := range 200 {
		if got := find(t, a, kv.Key{1, byte(n)}); len(got) != 1 {
			t.Fatalf("record %d is lost", n)
		}
	}
	own = a.logs[a.own]
	own.data = badRange{own.f, 4096, 8192}
	if err := a.Compact(all); err == nil {
		t.Error("it was compacted")
	}
	a.unreadSince = a.unreadSince.Add(-dropAfter)
	do(t, a.Compact(all))
}

// counted counts what is read.
type counted struct {
	io.ReaderAt
	bytes int64
}

func (c *counted) ReadAt(p []byte, at int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(p, at)
	c.bytes += int64(n)
	return n, err
}

// What could not be read is read again without all that was read behind it: lookups wait meanwhile.
func TestOnlyTheGapIsReadAgain(t *testing.T) {
	a := openLogs(t, t.TempDir(), Shape{kv.Fingerprint{9}, 4096, 2})
	const records = 20000 // of 80 bytes
	for n := range records {
		put(t, a, kv.Key{1, byte(n), byte(n >> 8)}, []uint64{1, uint64(n)})
	}
	own := a.logs[a.own]
	l, found := &log{f: own.f, data: badRange{own.f, 8192, 12288}}, map[kv.Key]bool{}
	note := func(_ int64, r *record) { found[r.key] = true }
	if err := l.read(note); err != nil || !l.gap.open || len(found) == records {
		t.Fatalf("%d records, a gap: %v, %v", len(found), l.gap.open, err)
	}
	again := &counted{ReaderAt: own.f}
	l.data, l.gap.next = again, time.Now()
	if err := l.readGap(time.Now(), note); err != nil || l.gap.open || len(found) != records {
		t.Errorf("%d of %d records, a gap: %v, %v", len(found), records, l.gap.open, err)
	}
	if again.bytes > 256<<10 {
		t.Errorf("%d bytes of %d were read", again.bytes, own.end)
	}
}
