package ringserver

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// iov is a client's data buffer. It is reached through the table; whoever uses
// its memory holds a view.
type iov struct {
	sizeBytes  int64
	blockBytes int64 // sub-block that no request may cross; 0: none
	uid        uint32
	shadows    *iov // an older iov with the same id; guarded by table.mu

	lastUse atomic.Int64 // unix seconds of the last request; 0 when its pages were forgotten

	mu  sync.Mutex
	cur *view // nil once closed
}

// view is one mapping of an iov with its users. An expired request spoils pages
// of a view; the iov then goes on with a fresh one.
type view struct {
	m    *shm.Mapping
	refs atomic.Int64

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

// acquire returns the current view, or nil once the iov is closed; release it.
func (v *iov) acquire() *view {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cur != nil {
		v.cur.refs.Add(1)
	}
	return v.cur
}

func (w *view) release() {
	if w.refs.Add(-1) == 0 {
		w.m.Unmap()
	}
}

// close gives up the table's reference.
func (v *iov) close() {
	v.mu.Lock()
	cur := v.cur
	v.cur = nil
	v.mu.Unlock()
	if cur != nil {
		cur.release()
	}
}

// check validates a request's range; the errors are those of 4.8.
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

// abandon cuts the memory that a running system call works on off from the
// client: the call may finish whenever it likes. New requests get a fresh view.
// A write only reads the client's memory; of what a read may have had pinned by
// its file system, whole pages are taken out of the object as well. An error
// means that the buffer is still within the call's reach.
func (v *iov) abandon(w *view, off, n int64, write bool) error {
	v.mu.Lock()
	if v.cur == w {
		// Without memory for a fresh view the iov ends here: its requests are
		// refused from now on.
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

// isSpoiled tells whether what was read into [off, off+n) of w may have gone to
// pages that abandon cut off.
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
