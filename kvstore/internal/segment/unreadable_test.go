package segment

import (
	"errors"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// A block that cannot be read is saved again, into another slot, and is there then, also
// after a restart. Once it is deleted, no place of it comes back.
func TestUnreadableBlockHeals(t *testing.T) {
	for name, c := range map[string]struct {
		ofHead bool
		err    syscall.Errno
	}{"head": {true, syscall.EIO}, "shard": {false, syscall.EIO}, "shard of a file system with checksums": {false, syscall.EBADMSG}} {
		t.Run(name, func(t *testing.T) {
			m := newInterceptor()
			o := options(t.TempDir(), small, 4, 8)
			o.Engine = m
			s := open(t, o)
			key := keyOf(0)
			save(t, s, keysOf(0, 3)...)
			// The bytes at this offset of this segment are bad.
			seg := s.segmentWith(t, key)
			s.mu.RLock()
			at, _ := s.table.find(key)
			s.mu.RUnlock()
			offset := s.geo.slotAt(int(at - seg.first))
			if c.ofHead {
				offset = s.geo.headAt(int(at - seg.first))
			}
			m.intercept(func(op transfer.Op, do func()) {
				if op.File == seg.data && op.Offset == offset && !op.Write {
					op.Done(0, c.err)
					return
				}
				do()
			})
			for range 2 {
				task, err := s.Load(t.Context(), shardsOf(small, key))
				if err != nil {
					t.Fatal(err)
				}
				if err := task.Wait(t.Context()); !errors.Is(err, c.err) {
					t.Fatal(err)
				}
			}
			if f := found(t, s, keysOf(0, 3)...); f[0] || !f[1] || !f[2] {
				t.Errorf("found %v", f)
			}
			save(t, s, key)
			loads(t, s, keysOf(0, 3)...)
			if f := found(t, s, key); !f[0] {
				t.Error("not found after it was saved again")
			}
			o.Engine = nil
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			// As after a kill: the index does not say which of the two places counts.
			put(t, seg.file.Name(), s.geo.indexAt(), make([]byte, s.geo.indexPages()*pageBytes))
			s = open(t, o)
			loads(t, s, keysOf(0, 3)...)
			if now := s.segmentWith(t, key); now.number == seg.number {
				s.mu.RLock()
				again, _ := s.table.find(key)
				s.mu.RUnlock()
				if again-now.first == at-seg.first {
					t.Error("the bad slot is used after a restart")
				}
			}
			if err := s.Delete(t.Context(), keysOf(0, 1)); err != nil {
				t.Fatal(err)
			}
			s = reopen(t, s, o)
			if f := found(t, s, key); f[0] {
				t.Error("a deleted block came back")
			}
		})
	}
}
