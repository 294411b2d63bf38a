package blockfiles

import (
	"container/list"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// handle is a block that is open.
type handle struct {
	key     kv.Key
	root    *root
	path    string
	at      Place
	file    transfer.File
	ino     uint64
	version uint64 // of the block
	mode    uint16
	opened  time.Time
	found   sums.Finding

	// The lock of handles guards these:
	users int
	since time.Time     // when it became idle
	idle  *list.Element // in handles.idle; nil while it has users
	kept  bool          // it is in handles.byKey, where others find it

	quarantined sync.Once
}

// handles keeps the open blocks. Blocks do not change, so an open file is as good as the
// latest of that name, even when it no longer has a name.
type handles struct {
	most int // how many without a user stay open

	mu       sync.Mutex
	byKey    map[kv.Key]*handle
	idle     list.List // of *handle without users, the longest idle first
	removals uint64    // how often forgetRemoved was called
}

func newHandles(most int) *handles {
	return &handles{most: most, byKey: map[kv.Key]*handle{}}
}

// take finds an open block and adds a user; give removes one.
func (hs *handles) take(key kv.Key) *handle {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.byKey[key]
	if h == nil {
		return nil
	}
	if h.idle != nil {
		hs.idle.Remove(h.idle)
		h.idle = nil
	}
	h.users++
	return h
}

// epoch returns a number for add.
func (hs *handles) epoch() uint64 {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.removals
}

// add enters a block that was just opened, with one user. epoch must be from before the
// file was opened: a block that may have been removed since is not kept for others.
func (hs *handles) add(h *handle, epoch uint64) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.users = 1
	if hs.byKey[h.key] == nil && hs.removals == epoch {
		hs.byKey[h.key], h.kept = h, true
	}
}

// give removes a user and returns the handles to be closed.
func (hs *handles) give(h *handle) (unwanted []*handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.users--
	invariants.Check(h.users >= 0, "block %s is open with %d users", h.key, h.users)
	invariants.Check(h.idle == nil, "block %s is idle and was in use", h.key)
	switch {
	case h.users > 0:
		return nil
	case !h.kept:
		return []*handle{h}
	}
	h.idle, h.since = hs.idle.PushBack(h), time.Now()
	return hs.shrink(hs.most)
}

// shrink removes the longest idle handles until most are left. The lock is held.
func (hs *handles) shrink(most int) (unwanted []*handle) {
	for hs.idle.Len() > most {
		h := hs.idle.Remove(hs.idle.Front()).(*handle)
		invariants.Check(h.users == 0 && hs.byKey[h.key] == h, "block %s is idle and has %d users", h.key, h.users)
		h.idle = nil
		delete(hs.byKey, h.key)
		unwanted = append(unwanted, h)
	}
	return unwanted
}

// close removes all handles without users.
func (hs *handles) close() (unwanted []*handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.shrink(0)
}

// closeIdle removes the handles that have been idle for idleGap.
func (hs *handles) closeIdle() (unwanted []*handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	keep := 0
	for e := hs.idle.Back(); e != nil && time.Since(e.Value.(*handle).since) < idleGap; e = e.Prev() {
		keep++
	}
	return hs.shrink(keep)
}

// forget makes the next load of a block open it again.
func (hs *handles) forget(key kv.Key) (unwanted []*handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.forgetLocked(key)
}

// forgetRemoved is forget for a block whose file has been removed.
func (hs *handles) forgetRemoved(key kv.Key) (unwanted []*handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.removals++
	return hs.forgetLocked(key)
}

func (hs *handles) forgetLocked(key kv.Key) (unwanted []*handle) {
	h := hs.byKey[key]
	if h == nil {
		return nil
	}
	delete(hs.byKey, key)
	h.kept = false
	if h.idle == nil {
		return nil
	}
	hs.idle.Remove(h.idle)
	h.idle = nil
	return []*handle{h}
}

// release ends a use of a handle.
func (s *Store) release(h *handle) { s.closeHandles(s.handles.give(h)) }

func (s *Store) forgetHandle(key kv.Key) { s.closeHandles(s.handles.forget(key)) }

func (s *Store) closeHandles(unwanted []*handle) {
	for _, h := range unwanted {
		s.closeFile(h.file)
	}
}
