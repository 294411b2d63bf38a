package ucmfiles

import (
	"errors"
	"sync"
	"syscall"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// unreadable are the files of blocks whose last open or read failed with EIO. Lookup and Save take
// such a block for missing, so that it is saved again, into another file. A Load still tries
// the file. It does not prove it good: other shards may be readable.
type unreadable struct {
	mu   sync.Mutex
	inos map[kv.Key]uint64
}

// mostUnreadable bounds the memory. Beyond it, blocks are not remembered.
const mostUnreadable = 1 << 16

// failed remembers the file of a block if err means that the storage could not read it.
func (u *unreadable) failed(key kv.Key, ino uint64, err error) {
	if !errors.Is(err, syscall.EIO) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.inos == nil {
		u.inos = map[kv.Key]uint64{}
	}
	if len(u.inos) < mostUnreadable {
		u.inos[key] = ino
	}
}

// saved forgets a block that was saved again.
func (u *unreadable) saved(key kv.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.inos, key)
}

// has reports whether the last open or read of this file failed. Another file of the same block may
// be good: another process has saved it again.
func (u *unreadable) has(key kv.Key, ino uint64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	bad, ok := u.inos[key]
	return ok && bad == ino
}
