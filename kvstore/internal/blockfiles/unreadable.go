package blockfiles

import (
	"errors"
	"io/fs"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// unreadable are the files of blocks whose last open or read failed because of the file itself.
// Lookup and Save take such a block for missing, so that it is saved again, into another file. A
// Load still tries the file. It does not prove it good: other shards may be readable.
type unreadable struct {
	mu   sync.Mutex
	inos map[kv.Key]uint64
}

// mostUnreadable bounds the memory. Beyond it, blocks are not remembered.
const mostUnreadable = 1 << 16

// read remembers the file of a block if err means that the storage could not read it.
func (u *unreadable) read(key kv.Key, ino uint64, err error) {
	if kv.IsUnreadable(err) {
		u.add(key, ino)
	}
}

// opened remembers the file of a block if err means that it cannot be opened, now or later:
// the storage cannot read it, its mode forbids it, or the server behind it has lost it. A
// Save replaces it.
func (u *unreadable) opened(key kv.Key, ino uint64, err error) (bad bool) {
	bad = lost(err) || errors.Is(err, fs.ErrPermission)
	if bad {
		u.add(key, ino)
	}
	return bad
}

func (u *unreadable) add(key kv.Key, ino uint64) {
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
