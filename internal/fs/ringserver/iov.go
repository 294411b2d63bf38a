package ringserver

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// iov is a client's data buffer. Requests find it through the table and use its
// memory through a view.
type iov struct {
	sizeBytes  int64
	blockBytes int64 // size of the sub-blocks, whose boundaries no request may cross; 0: none
	uid        uint32
	shadows    *iov // an older iov with the same id; guarded by table.mu

	lastUse atomic.Int64 // unix seconds of the last request; 0 once forgetPages has run

	mu  sync.Mutex
	cur *view // nil once closed
}

// view is one mapping of an iov, with a count of its users. When a request expires,
// pages of its view are detached from the client's memory; the iov then continues
// with a new view.
type view struct {
	m    mapped       // unmapped when refs drops to 0
	refs atomic.Int64 // one for iov.cur, one for each user

	detached atomic.Bool // spoiled has any
	mu       sync.Mutex
	spoiled  []span
}

type span struct{ off, end int64 }

func newIov(m mapped, blockBytes int64) *iov {
	return &iov{sizeBytes: m.Len(), blockBytes: blockBytes, uid: m.uid, cur: newView(m)}
}

func newView(m mapped) *view {
	v := &view{m: m}
	v.refs.Store(1)
	return v
}

// acquire returns the current view, which the caller must release, or nil once the
// iov is closed.
func (b *iov) acquire() *view {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cur != nil {
		refs := b.cur.refs.Add(1)
		if invariants.Enabled {
			invariants.Check(refs > 1, "view: acquired after it was unmapped")
		}
	}
	return b.cur
}

// hold adds a reference for another user of v; the caller has one.
func (v *view) hold() *view {
	v.refs.Add(1)
	return v
}

// release drops a reference. The last one ends the mapping, which may take long.
func (v *view) release() {
	if v.unref() {
		v.m.Unmap()
	}
}

// releaseBy is release for a worker, which has u end the mapping.
func (v *view) releaseBy(u *unmapper) {
	if v.unref() {
		u.unmap(v.m)
	}
}

func (v *view) unref() (last bool) {
	refs := v.refs.Add(-1)
	if invariants.Enabled {
		invariants.Check(refs >= 0, "view: released more often than acquired")
	}
	return refs == 0
}

// close drops iov.cur, so that no request gets a view any more.
func (b *iov) close() {
	b.mu.Lock()
	cur := b.cur
	b.cur = nil
	b.mu.Unlock()
	if cur != nil {
		cur.release()
	}
}

// validate checks the range that a request names. Its errors are those of 4.8.
func (b *iov) validate(off, n uint64) error {
	size := uint64(b.sizeBytes)
	if off > size || n > size-off {
		return syscall.EINVAL
	}
	if block := uint64(b.blockBytes); block > 0 && n > 0 && off/block != (off+n-1)/block {
		return syscall.EINVAL
	}
	return nil
}

// detach detaches the memory that a running system call uses from the client's
// object, so that the call may finish at any time. New requests get a new view. For a
// read, whose file system may have pinned the pages, whole pages are punched out of the
// object as well; a write only reads the client's memory. If detach fails, the call can
// still reach the buffer.
func (b *iov) detach(v *view, off, n int64, write bool) error {
	if invariants.Enabled {
		invariants.Check(v.refs.Load() > 0, "view: detached after it was unmapped")
	}
	b.mu.Lock()
	if b.cur == v {
		// If it cannot be mapped again, or its user has too much mapped already, the
		// iov is closed: its requests are refused from now on.
		b.cur = nil
		if m, err := v.m.Remap(); err == nil {
			b.cur = newView(m)
		}
		defer v.release()
	}
	b.mu.Unlock()

	page := int64(os.Getpagesize())
	v.mu.Lock()
	v.spoiled = append(v.spoiled, span{off &^ (page - 1), (off + n + page - 1) &^ (page - 1)})
	v.detached.Store(true)
	v.mu.Unlock()
	if err := v.m.Detach(off, n); err != nil {
		return err
	}
	if write {
		return nil
	}
	return v.m.Punch(off, n)
}

// isSpoiled reports whether bytes that were read into [off, off+n) of v may have gone
// to pages that have been detached.
func (v *view) isSpoiled(off, n int64) bool {
	if !v.detached.Load() {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.spoiled {
		if off < s.end && s.off < off+n {
			return true
		}
	}
	return false
}
