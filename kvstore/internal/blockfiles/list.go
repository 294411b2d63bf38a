package blockfiles

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// listChunk is how many keys Keys checks before it yields them. They share the pool
// with lookups, so it is not large.
const listChunk = 256

// Keys yields the blocks that the store's namespace has a record of, even if they are cut
// into other shards or if the record was damaged later, so that Lookup misses them. It leaves
// out files without any record, of another program's, unless names tell their namespace.
func (s *Store) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		if err := s.keysIn(ctx, ".", yield); err != nil && err != errStopped {
			yield(kv.Key{}, err)
		}
	}
}

// errStopped says that the caller of Keys wants no more.
var errStopped = errors.New("stopped")

// keysIn yields the keys in and below the directories of one name, of all roots: a block may
// be in several.
func (s *Store) keysIn(ctx context.Context, dir string, yield func(kv.Key, error) bool) error {
	names, err := s.namesIn(ctx, dir)
	if err != nil {
		return err
	}
	var below []string
	for chunk := range slices.Chunk(names, listChunk) {
		var some []kv.Key
		var places []Place
		for _, name := range chunk {
			if key, place, ok := s.keyAt(dir, name); ok {
				some, places = append(some, key), append(places, place)
			} else if sub := filepath.Join(dir, name); s.o.Format.HasBlocks(sub) {
				below = append(below, sub)
			}
		}
		ours, err := s.scan(ctx, s.lookups, some, func(i int, key kv.Key, asOf time.Time) (bool, error) {
			var first Place // a block may be in several places, and is yielded once
			is, err := s.any(key, asOf, func(at sighting) (bool, error) {
				first = at.place
				if at.found.Known || !s.o.NamesTell {
					return at.found.Known, nil
				}
				return s.isLoadable(key, at)
			})
			return is && first == places[i], err
		})
		if err != nil {
			return err
		}
		for i, key := range some {
			if ours[i] && !yield(key, nil) {
				return errStopped
			}
		}
	}
	for _, sub := range below {
		if err := s.keysIn(ctx, sub, yield); err != nil {
			return err
		}
	}
	return nil
}

// keyAt returns the key of the block in a file of this name, and its place, if there is one.
func (s *Store) keyAt(dir, name string) (kv.Key, Place, bool) {
	key, ok := s.o.Format.Key(name)
	if !ok {
		return key, Place{}, false
	}
	places, _ := s.placesOf(key)
	i := slices.IndexFunc(places, func(p Place) bool { return p.Dir == dir && p.Name == name })
	if i < 0 {
		return key, Place{}, false
	}
	return key, places[i], true
}

// namesIn returns what the directories of one name have in them, sorted and without
// duplicates. A root that has no such directory adds nothing.
func (s *Store) namesIn(ctx context.Context, dir string) ([]string, error) {
	if err := s.group.Enter(); err != nil {
		return nil, err
	}
	defer s.group.Leave()
	ctx, cancel := s.group.With(ctx)
	defer cancel()
	var all []string
	for _, r := range s.roots {
		var names []string
		err := within(ctx, s.lookups, func() (err error) {
			names, err = readNames(filepath.Join(r.dir, dir))
			return err
		})
		switch {
		case s.group.Err() != nil:
			return nil, kv.ErrClosed
		case err != nil && !gone(err):
			return nil, s.overdue(err)
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func readNames(dir string) ([]string, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0) // a pipe with its name would hang
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err == io.EOF {
		err = nil
	}
	return names, err
}
