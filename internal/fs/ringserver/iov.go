package ringserver

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// iov is a client's data buffer. Requests find it through the table and use its
// memory through a view.
type iov struct {
	sizeBytes  int64
	blockBytes int64 // size of the sub-blocks, whose boundaries no request may cross; 0: none
	uid        uint32
	shadows    *iov // an older iov with the same id; guarded by table.mu

	lastUse atomic.Int64 // unix seconds of the last request; 0 once its pages were forgotten

	mu  sync.Mutex
	cur *view // nil once closed
}

// view is one mapping of an iov, with a count of its users. When a request expires,
// pages of its view are detached from the client's memory; the iov then continues
// with a new view.
type view struct {
	m    *shm.Mapping // unmapped when refs drops to 0
	refs atomic.Int64 // one for iov.cur, one for each user

	mu      sync.Mutex
	spoiled []span
}

type span struct{ off, end int64 }

func newIov(fd int, sizeBytes, blockBytes int64, uid uint32) (*iov, error) {
	m, err := shm.Map(fd, sizeBytes)
	if err != nil {
		return nil, err
	}
	return &iov{sizeBytes: sizeBytes, blockBytes: blockBytes, uid: uid, cur: newView(m)}, nil
}

func newView(m *shm.Mapping) *view {
	w := &view{m: m}
	w.refs.Store(1)
	return w
}

// acquire returns the current view, which the caller must release, or nil once the
// iov is closed.
func (v *iov) acquire() *view {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cur != nil {
		refs := v.cur.refs.Add(1)
		if invariants.Enabled {
			invariants.Check(refs > 1, "view: acquired after it was unmapped")
		}
	}
	return v.cur
}

func (w *view) release() {
	refs := w.refs.Add(-1)
	if invariants.Enabled {
		invariants.Check(refs >= 0, "view: released more often than acquired")
	}
	if refs == 0 {
		w.m.Unmap()
	}
}

// close drops iov.cur, so that no request gets a view any more.
func (v *iov) close() {
	v.mu.Lock()
	cur := v.cur
	v.cur = nil
	v.mu.Unlock()
	if cur != nil {
		cur.release()
	}
}

// check validates a request's range. Its errors are those of 4.8.
func (v *iov) check(off, n uint64) error {
	size := uint64(v.sizeBytes)
	if off > size || n > size-off {
		return syscall.EINVAL
	}
	if block := uint64(v.blockBytes); block > 0 && n > 0 && off/block != (off+n-1)/block {
		return syscall.EINVAL
	}
	return nil
}

// abandon detaches the memory that a running system call uses from the client's
// object, so that the call may finish at any time. New requests get a new view. A
// write only reads the client's memory. For a read, whose file system may have
// pinned the pages, whole pages are punched out of the object as well. After an
// error the call can still reach the buffer.
func (v *iov) abandon(w *view, off, n int64, write bool) error {
	if invariants.Enabled {
		invariants.Check(w.refs.Load() > 0, "view: detached after it was unmapped")
	}
	v.mu.Lock()
	if v.cur == w {
		// Without memory for a new view the iov ends here: its requests are refused
		// from now on.
		v.cur = nil
		if m, err := w.m.Remap(); err == nil {
			v.cur = newView(m)
		}
		defer w.release()
	}
	v.mu.Unlock()

	page := int64(os.Getpagesize())
	w.mu.Lock()
	w.spoiled = append(w.spoiled, span{off &^ (page - 1), (off + n + page - 1) &^ (page - 1)})
	w.mu.Unlock()
	if err := w.m.Detach(off, n); err != nil {
		return err
	}
	if write {
		return nil
	}
	return w.m.Punch(off, n)
}

// isSpoiled reports whether bytes that were read into [off, off+n) of w may have gone
// to pages that abandon detached.
func (w *view) isSpoiled(off, n int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.spoiled {
		if off < s.end && s.off < off+n {
			return true
		}
	}
	return false
}
