package blockfiles

import (
	"errors"
	"io/fs"
	"maps"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// unreadable are the files of blocks whose last open or read failed, perhaps because of the file itself, or whose
// bytes match no checksum that can be read while a checksum log cannot be.
// For kv.UnreadableFor, Lookup and Save take such a block for missing, so that it is saved again, into
// another file. A Load still tries the file. It does not prove it good: other shards may be readable.
type unreadable struct {
	mu    sync.Mutex
	files map[kv.Key]failed
}

type failed struct {
	ino   uint64
	until time.Time
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
	now := time.Now()
	if len(u.files) == mostUnreadable {
		maps.DeleteFunc(u.files, func(_ kv.Key, f failed) bool { return now.After(f.until) })
	}
	if u.files == nil {
		u.files = map[kv.Key]failed{}
	}
	if len(u.files) < mostUnreadable {
		u.files[key] = failed{ino, now.Add(kv.UnreadableFor)}
	}
}

// saved forgets a block that was saved again.
func (u *unreadable) saved(key kv.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.files, key)
}

// has reports whether the last open or read of this file has failed, a short time ago. Another file of the
// same block may be good: another process has saved it again.
func (u *unreadable) has(key kv.Key, ino uint64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	bad, ok := u.files[key]
	if ok && time.Now().After(bad.until) {
		delete(u.files, key)
		return false
	}
	return ok && bad.ino == ino
}
