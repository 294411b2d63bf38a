package tier

import (
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// keep is a block from far on its way into the near store. The store's lock guards it.
type keep struct {
	key     kv.Key
	buf     []byte
	state   keepState
	from    *reading // of the first shard
	version uint64   // of the shards; 0: they must all be of one reading
	have    []bool
	left    int // shards that have not come
	copying int // goroutines that copy into buf
	dead    bool
	last    time.Time
	done    chan struct{} // closed when the near store has it, or will not get it
}

type keepState int

const (
	gathering keepState = iota // shards come, from one load or several
	complete                   // it waits for a keeper
	fetching                   // the filler reads it from far
	storing                    // the near store is storing it
)

const (
	keepers     = 2
	searchEvery = 100 * time.Millisecond // for idle keeps: each shard that finds no memory would search all
)

// keep takes a copy of a shard that came from far. When all of a block have come, the near
// store gets it. What finds no memory is wanted, so that the filler reads it later.
func (s *Store) keep(r *reading, shard kv.Shard, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.forgotten[shard.Key] || s.deleting[shard.Key] > 0 {
		return
	}
	k := s.keeps[shard.Key]
	if k == nil {
		buf, _ := s.memory.try()
		if buf == nil {
			if time.Since(s.searched) > searchEvery {
				s.searched = time.Now()
				s.dropIdleLocked()
			}
			if buf, _ = s.memory.try(); buf == nil {
				s.wantLocked(shard.Key)
				return
			}
		}
		k = &keep{key: shard.Key, buf: buf, done: make(chan struct{})}
		k.begin(r, version, s.layout.Shards())
		s.keeps[shard.Key] = k
	}
	switch other := k.from != r && (version == 0 || version != k.version); {
	case k.state != gathering || k.dead:
		return
	case other && k.copying > 0:
		return
	case other: // the block was replaced
		k.begin(r, version, s.layout.Shards())
	}
	if k.have[shard.Index] {
		return
	}
	k.have[shard.Index] = true
	k.copying++
	s.mu.Unlock()
	copy(s.part(k.buf, shard.Index), shard.Buf)
	s.mu.Lock()
	k.copying--
	k.left--
	k.last = time.Now()
	switch {
	case k.dead && k.copying == 0:
		s.drop(k, nil)
	case !k.dead && k.left == 0:
		k.state = complete
		s.ready <- k // there is a place for each buffer
	}
}

func (k *keep) begin(r *reading, version uint64, shards int) {
	k.from, k.version, k.last = r, version, time.Now()
	k.have, k.left = make([]bool, shards), shards
}

// drop ends a keep. The lock is held.
func (s *Store) drop(k *keep, err error) {
	delete(s.keeps, k.key)
	s.memory.put(k.buf, err)
	close(k.done)
}

// dropIdle gives up blocks whose rest does not come.
func (s *Store) dropIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropIdleLocked()
}

func (s *Store) dropIdleLocked() {
	for _, k := range s.keeps {
		if k.state == gathering && k.copying == 0 && time.Since(k.last) > min(s.o.Timeout, 10*time.Second) {
			s.drop(k, nil)
		}
	}
}

// keeper is a goroutine that writes whole blocks to the near store.
func (s *Store) keeper() {
	for {
		select {
		case k := <-s.ready:
			s.store(k)
		case <-s.ctx.Done():
			return
		}
	}
}

// store has the near store take a block, unless it was deleted.
func (s *Store) store(k *keep) {
	s.mu.Lock()
	dead := k.dead || s.deleting[k.key] > 0
	if dead {
		s.drop(k, nil)
	} else {
		k.state = storing
	}
	s.mu.Unlock()
	if dead {
		return
	}
	t, err := s.near.Save(s.ctx, s.wholeOf(k.key, k.buf))
	if err == nil {
		err = outcome(t)
	}
	if err == nil {
		s.filled.Add(1)
	}
	s.mu.Lock()
	s.drop(k, err)
	s.mu.Unlock()
}

// drainKeeps waits until the near store has the blocks that are whole, or is too slow.
func (s *Store) drainKeeps() {
	timer := time.NewTimer(s.o.Timeout)
	defer timer.Stop()
	for {
		var done <-chan struct{}
		s.mu.Lock()
		for _, k := range s.keeps {
			if k.state == complete || k.state == storing {
				done = k.done
				break
			}
		}
		s.mu.Unlock()
		if done == nil {
			return
		}
		select {
		case <-done:
			timer.Reset(s.o.Timeout)
		case <-timer.C:
			return
		}
	}
}

// want asks the filler for a block. It may be left out.
func (s *Store) want(key kv.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wantLocked(key)
}

func (s *Store) wantLocked(key kv.Key) {
	if _, is := s.isWanted[key]; is {
		return
	}
	select {
	case s.wanted <- key:
		s.isWanted[key] = struct{}{}
	default:
	}
}

// filler is a goroutine that brings wanted blocks near.
func (s *Store) filler() {
	for {
		select {
		case key := <-s.wanted:
			s.mu.Lock()
			delete(s.isWanted, key)
			s.mu.Unlock()
			s.fill(key)
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *Store) fill(key kv.Key) {
	found := make([]bool, 1)
	if s.health.err() != nil || s.near.Lookup(s.ctx, []kv.Key{key}, found) != nil || found[0] {
		return
	}
	buf, err := s.memory.take(s.ctx, s.dropIdle)
	if err != nil {
		return
	}
	k := &keep{key: key, buf: buf, state: fetching, done: make(chan struct{})}
	s.mu.Lock()
	if s.keeps[key] != nil || s.deleting[key] > 0 {
		s.memory.put(buf, nil)
		s.mu.Unlock()
		return
	}
	s.keeps[key] = k
	s.mu.Unlock()
	if err := s.readWhole(s.ctx, key, buf); err != nil {
		s.mu.Lock()
		s.drop(k, err)
		s.mu.Unlock()
		return
	}
	s.store(k)
}
