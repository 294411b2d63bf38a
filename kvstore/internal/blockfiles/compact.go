package blockfiles

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// compact rewrites the checksum log of a root without the records of blocks that are gone.
func (s *Store) compact(r *root) error {
	young := &sync.Map{}
	s.young.Store(young) // before committing is read, so that no key is in neither
	defer s.young.Store(nil)
	s.committing.Range(func(key, _ any) bool {
		young.Store(key, nil)
		return true
	})
	present := sync.OnceValues(func() (map[kv.Key]struct{}, error) {
		all := map[kv.Key]struct{}{}
		return all, errors.Join(s.addPresent(r, ".", all), s.addPresent(r, SpareDir, all))
	})
	return r.sums.Compact(func(key kv.Key, ours bool) bool {
		if _, ok := young.Load(key); ok || s.group.Err() != nil {
			return true
		}
		if places, err := s.placesOf(key); err == nil {
			return slices.ContainsFunc(places, func(place Place) bool { return exists(r.in(place)) || exists(r.spare(place)) })
		}
		// The Format has no place for the key any more, as one that remembers keys has after a
		// restart. The names of files then tell which keys of this namespace have blocks.
		all, err := present()
		_, ok := all[key]
		return ok || !ours || err != nil
	})
}

// addPresent adds the keys of the files in and below a directory, which is relative to the
// root. If in doubt, a file is one of a block.
func (s *Store) addPresent(r *root, dir string, all map[kv.Key]struct{}) error {
	names, err := readNames(filepath.Join(r.dir, dir))
	if err != nil && !gone(err) {
		return err
	}
	for _, name := range names {
		if key, ok := s.o.Format.Key(name); ok {
			all[key] = struct{}{}
		} else if sub := filepath.Join(dir, name); s.o.Format.HasBlocks(sub) {
			if err := s.addPresent(r, sub, all); err != nil {
				return err
			}
		}
	}
	return nil
}
