package inventory

import (
	"sort"
	"time"
)

// Heat is what is remembered of a file's uses beyond the life of the inventory.
type Heat struct {
	Ino  uint64
	Age  uint32 // seconds since the last use
	Uses uint8
}

// SetHeat has the first scan give files their uses from before. It takes over all of it.
func (v *Inventory) SetHeat(all []Heat) {
	var parts [shards][]Heat
	var many [shards]int
	for _, h := range all {
		many[shardOf(h.Ino)]++
	}
	for i := range parts {
		parts[i] = make([]Heat, 0, many[i])
	}
	for _, h := range all {
		parts[shardOf(h.Ino)] = append(parts[shardOf(h.Ino)], h)
	}
	for i := range parts {
		sort.Slice(parts[i], func(a, b int) bool { return parts[i][a].Ino < parts[i][b].Ino })
		s := &v.main.shards[i]
		s.mu.Lock()
		s.heat = parts[i]
		s.mu.Unlock()
	}
}

// warm gives a file that was found the uses that were remembered.
func (v *Inventory) warm(s *shard, k Key, f *file) {
	at := sort.Search(len(s.heat), func(i int) bool { return s.heat[i].Ino >= k.Ino })
	if k.Dev == v.main.dev && at < len(s.heat) && s.heat[at].Ino == k.Ino {
		f.lastUse = v.back(time.Duration(s.heat[at].Age) * time.Second)
		f.uses = s.heat[at].Uses
	}
}

func (v *Inventory) endHeat() {
	for i := range v.main.shards {
		s := &v.main.shards[i]
		s.mu.Lock()
		s.heat = nil
		s.mu.Unlock()
	}
}

// Heat calls fn with the uses of all files of the root's device, shard by shard, each sorted by inode.
// The slice is valid during the call only.
func (v *Inventory) Heat(fn func([]Heat) error) error {
	var part []Heat
	for i := range v.main.shards {
		s := &v.main.shards[i]
		part = part[:0]
		now := v.Now()
		s.mu.Lock()
		for ino, f := range s.files {
			part = append(part, Heat{Ino: ino, Age: now - f.lastUse, Uses: f.uses})
		}
		for _, h := range s.heat { // of files that the scan has not got to
			if _, ok := s.files[h.Ino]; !ok {
				part = append(part, h)
			}
		}
		s.mu.Unlock()
		sort.Slice(part, func(a, b int) bool { return part[a].Ino < part[b].Ino })
		if err := fn(part); err != nil {
			return err
		}
	}
	return nil
}

// HeatCount returns how many files Heat is about, at the moment.
func (v *Inventory) HeatCount() (n int) {
	for i := range v.main.shards {
		s := &v.main.shards[i]
		s.mu.Lock()
		n += len(s.files)
		for _, h := range s.heat {
			if _, ok := s.files[h.Ino]; !ok {
				n++
			}
		}
		s.mu.Unlock()
	}
	return n
}
