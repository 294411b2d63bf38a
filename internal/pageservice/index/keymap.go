package index

import "hash/maphash"

// keyMap finds the entry of a key. It holds no pointers, which spares the garbage
// collector a million of them. It consists of many small tables, of which only one grows
// at a time, so that no caller waits long. Each has a power of two of slots, with linear
// probing.
type keyMap struct {
	shards [numShards]shard
	len    int
	bytes  int64 // of all slots
}

const numShards = 256

type shard struct {
	slots []slot
	used  int
}

// slot is 0, or holds the lower half of a key's hash and its entry + 1. That half
// determines the place in the shard, so growing does not look at keys.
type slot uint64

func (s slot) tag() uint32   { return uint32(s >> 32) }
func (s slot) entry() uint32 { return uint32(s) - 1 }

const minSlots = 8

// full reports whether a shard must grow: at three quarters.
func (sh *shard) full() bool { return 4*(sh.used+1) > 3*len(sh.slots) }

// seed makes hashes differ from process to process, so that a client cannot choose keys
// that collide.
var seed = maphash.MakeSeed()

// hashOf returns the hash by which a key is found.
func hashOf(key string) uint64 { return maphash.String(seed, key) }

// newKeyMap returns an empty map, made for about expect keys.
func newKeyMap(expect int) *keyMap {
	x := &keyMap{}
	if expect < numShards*minSlots {
		return x // shards are made when they are needed
	}
	for n := range x.shards {
		x.resize(&x.shards[n], expect/numShards*17/16) // since keys spread unevenly
	}
	return x
}

func (m *keyMap) shard(hash uint64) *shard { return &m.shards[hash>>56] }

// find returns the entry of a key.
func (m *keyMap) find(t *table, hash uint64, key string) (id uint32, ok bool) {
	sh := m.shard(hash)
	if sh.used == 0 {
		return 0, false
	}
	mask := uint32(len(sh.slots) - 1)
	for i := uint32(hash) & mask; ; i = (i + 1) & mask {
		switch at := sh.slots[i]; {
		case at == 0:
			return 0, false
		case at.tag() == uint32(hash) && t.at(at.entry()).key == key:
			return at.entry(), true
		}
	}
}

// none is the entry of a key that has none.
const none = ^uint32(0)

// findAll finds the entries of a batch, or none. It goes through the batch once for
// each thing that it fetches from memory: a processor fetches many at a time if one
// does not depend on the other.
func (m *keyMap) findAll(t *table, hashes []uint64, keys []string, ids []uint32) {
	for i, hash := range hashes {
		ids[i] = none
		if sh := m.shard(hash); sh.used > 0 {
			ids[i] = sh.slots[uint32(hash)&uint32(len(sh.slots)-1)].entry()
		}
	}
	for i, hash := range hashes {
		if sh := m.shard(hash); sh.used > 0 {
			ids[i] = sh.candidate(uint32(hash))
		}
	}
	for i, id := range ids {
		if id != none && t.at(id).hash != hashes[i] {
			ids[i] = m.findSlowly(t, hashes[i], keys[i])
		}
	}
	for i, id := range ids {
		if id != none && t.at(id).key != keys[i] {
			ids[i] = m.findSlowly(t, hashes[i], keys[i])
		}
	}
}

func (m *keyMap) findSlowly(t *table, hash uint64, key string) uint32 {
	if id, ok := m.find(t, hash, key); ok {
		return id
	}
	return none
}

// candidate returns the first entry with a tag, which is nearly always the right one.
func (sh *shard) candidate(tag uint32) uint32 {
	mask := uint32(len(sh.slots) - 1)
	for i := tag & mask; ; i = (i + 1) & mask {
		if at := sh.slots[i]; at == 0 || at.tag() == tag {
			return at.entry()
		}
	}
}

// add adds an entry whose key has none yet.
func (m *keyMap) add(hash uint64, id uint32) {
	sh := m.shard(hash)
	if sh.full() {
		m.resize(sh, 2*sh.used)
	}
	sh.put(slot(hash)<<32 | slot(id+1))
	m.len++
}

func (sh *shard) put(s slot) {
	mask := uint32(len(sh.slots) - 1)
	i := s.tag() & mask
	for sh.slots[i] != 0 {
		i = (i + 1) & mask
	}
	sh.slots[i] = s
	sh.used++
}

// resize makes a shard large enough for n keys.
func (m *keyMap) resize(sh *shard, n int) {
	size := minSlots
	for 4*n > 3*size {
		size *= 2
	}
	old := sh.slots
	m.bytes += int64(size-len(old)) * slotBytes
	*sh = shard{slots: make([]slot, size)}
	for _, s := range old {
		if s != 0 {
			sh.put(s)
		}
	}
}

// remove removes an entry, which must exist. Later slots move up, so that probing finds
// no gaps.
func (m *keyMap) remove(hash uint64, id uint32) {
	sh := m.shard(hash)
	mask := uint32(len(sh.slots) - 1)
	i := uint32(hash) & mask
	for sh.slots[i].entry() != id {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; sh.slots[j] != 0; j = (j + 1) & mask {
		if home := sh.slots[j].tag() & mask; (j-home)&mask >= (j-i)&mask {
			sh.slots[i] = sh.slots[j]
			i = j
		}
	}
	sh.slots[i] = 0
	sh.used--
	m.len--
}
