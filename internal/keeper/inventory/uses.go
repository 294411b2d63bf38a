package inventory

import (
	"time"

	"github.com/zeebo/xxh3"
)

// Uses is told what becomes of files of kind Entry. Its methods are called with a lock
// held: they return at once and do not call back.
//
// A key tells entries apart, and is the same for one that leaves and comes back, as long as
// its directory stays.
type Uses interface {
	// Follows reports whether the uses of an entry of that key are wanted, rather than counted.
	// What it says may change with each use.
	Follows(key uint64) bool
	// Used tells of a use.
	Used(u Use)
	// Left tells that an entry was removed after so many uses.
	Left(key uint64, uses int)
	// Back tells that one is written that may have been there before, and returns how often it
	// was used until it last left; 0: nobody knows.
	Back(key uint64) (uses int)
}

// Use is a use of an entry: that it was read, or stored.
type Use struct {
	At       time.Duration // since the inventory was made
	Stored   bool          // the entry is new, and whole
	Followed bool          // if not, the other fields are 0
	Key      uint64
	Bytes    int64
	Uses     int // this one included, and those before it last left
}

// fewestSwept is how many followed files of a shard are not worth a sweep.
const fewestSwept = 512

// useKey returns the key of an entry of d, which is the same after a restart.
func useKey(d *Directory, entry string) uint64 { return xxh3.HashStringSeed(entry, d.key.Ino) }

// follow has Uses hear of a file under the name of an entry of d, if it wants to.
func (v *Inventory) follow(s *shard, ino uint64, f *file, d *Directory, entry string) {
	if v.Uses == nil || f.kind() != Entry || f.is(unplaced) {
		return
	}
	key := useKey(d, entry)
	if !v.Uses.Follows(key) {
		s.unfollow(ino, f)
		return
	}
	if len(s.followed) >= max(s.sweepAt, fewestSwept) {
		v.sweepFollowed(s)
	}
	s.followed[ino] = key
	f.set(followed, true)
}

func (s *shard) unfollow(ino uint64, f *file) {
	if f.is(followed) {
		f.set(followed, false)
		delete(s.followed, ino)
	}
}

// sweepFollowed drops the keys that are not wanted any more, whose files nobody uses.
func (v *Inventory) sweepFollowed(s *shard) {
	for ino, key := range s.followed {
		if v.Uses.Follows(key) {
			continue
		}
		delete(s.followed, ino)
		if f, ok := s.files[ino]; ok {
			f.set(followed, false)
			s.files[ino] = f
		}
	}
	s.sweepAt = 2 * len(s.followed)
}

// begins tells that a file has come into being, or got the name by which it is an entry.
func (v *Inventory) begins(s *shard, ino uint64, f *file, d *Directory, entry string) {
	f.set(fresh, true)
	v.follow(s, ino, f, d, entry)
	if v.Uses != nil && f.kind() == Entry && !f.is(unplaced) {
		f.uses = uint8(min(v.Uses.Back(useKey(d, entry)), mostUses))
	}
}

// stored ends the freshness of a file once it has its name and is not in use.
func (v *Inventory) stored(s *shard, ino uint64, f *file) {
	if !f.is(fresh) || f.flags&(inUse|nameless) != 0 || f.kind() == Temporary {
		return
	}
	f.set(fresh, false)
	at := v.Elapsed()
	f.lastUse = clockAt(at)
	v.tellUse(s, ino, f, at, true)
}

// touch counts a use. Those within one second are one: a large file is read in many parts.
// Reading back what is being written is none.
func (v *Inventory) touch(s *shard, ino uint64, f *file) {
	at := v.Elapsed()
	if f.lastUse >= clockAt(at) {
		return
	}
	f.lastUse = clockAt(at)
	if !f.is(fresh) {
		f.uses = min(f.uses, mostUses-1) + 1
		v.tellUse(s, ino, f, at, false)
	}
}

func (v *Inventory) tellUse(s *shard, ino uint64, f *file, at time.Duration, stored bool) {
	if v.Uses == nil || f.kind() != Entry {
		return
	}
	u := Use{At: at, Stored: stored}
	if f.is(followed) {
		if key := s.followed[ino]; v.Uses.Follows(key) {
			u.Followed, u.Key, u.Bytes, u.Uses = true, key, f.bytes(), int(f.uses)+1
		} else {
			s.unfollow(ino, f)
		}
	}
	v.Uses.Used(u)
}

// leaves tells that the last name of a file was removed, that of an entry of d.
func (v *Inventory) leaves(f *file, d *Directory, entry string) {
	if v.Uses != nil && f.kind() == Entry && f.flags&(fresh|nameless) == 0 {
		v.Uses.Left(useKey(d, entry), int(f.uses)+1)
	}
}
