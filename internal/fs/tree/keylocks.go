package tree

import "sync"

// keyLocks are locks by inode. The zero value is ready for use.
type keyLocks struct {
	shards [64]struct {
		mu    sync.Mutex // held for a few instructions
		locks map[FileKey]*keyLock
	}
}

type keyLock struct {
	sync.Mutex
	users int // who have it or wait for it; guarded by the shard's mu
}

// lock locks k until unlock is called.
func (l *keyLocks) lock(k FileKey) (unlock func()) {
	s := &l.shards[k.Ino%uint64(len(l.shards))]
	s.mu.Lock()
	one := s.locks[k]
	if one == nil {
		if s.locks == nil {
			s.locks = make(map[FileKey]*keyLock)
		}
		one = &keyLock{}
		s.locks[k] = one
	}
	one.users++
	s.mu.Unlock()
	one.Lock()
	return func() {
		one.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(s.locks, k)
		}
	}
}
