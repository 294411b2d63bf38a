package ucmfiles

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// listChunk is how many keys Keys checks before it yields them. They share the pool
// with lookups, so it is not large.
const listChunk = 256

// Keys yields the blocks that the store's namespace has a record of, even if they are cut
// into other shards or if the record was damaged later, so that Lookup misses them. It leaves out files without any record, as UCM writes them: nothing tells their
// namespace.
func (s *Store) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		dirs, err := s.blockDirs(ctx)
		for _, dir := range dirs {
			if err = s.keysIn(ctx, dir, yield); err != nil {
				break
			}
		}
		if err != nil && err != errStopped {
			yield(kv.Key{}, err)
		}
	}
}

// errStopped says that the caller of Keys wants no more.
var errStopped = errors.New("stopped")

// keysIn yields the keys in the directories of one name, of all roots: a block may be
// in several.
func (s *Store) keysIn(ctx context.Context, dir string, yield func(kv.Key, error) bool) error {
	names, err := s.namesIn(ctx, dir)
	if err != nil {
		return err
	}
	var all []kv.Key
	for _, name := range names {
		if key, err := keys.ParseKey(name); err == nil && key.String() == name && s.dirOf(name) == dir {
			all = append(all, key)
		}
	}
	for chunk := range slices.Chunk(all, listChunk) {
		ours, err := s.scan(ctx, s.lookups, chunk, func(_ int, key kv.Key, asOf time.Time) (bool, error) {
			return s.any(key, asOf, func(_ *root, found sums.Finding, _ unix.Statx_t, _ string) (bool, error) { return found.Known, nil })
		})
		if err != nil {
			return err
		}
		for i, key := range chunk {
			if ours[i] && !yield(key, nil) {
				return errStopped
			}
		}
	}
	return nil
}

// blockDirs returns the names of the directories with blocks.
func (s *Store) blockDirs(ctx context.Context) ([]string, error) {
	if s.o.DirDigits == 0 {
		return []string{s.dirOf("")}, nil
	}
	names, err := s.namesIn(ctx, ".")
	return slices.DeleteFunc(names, func(name string) bool {
		return len(name) != s.o.DirDigits || strings.Trim(name, "0123456789abcdef") != ""
	}), err
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
	f, err := os.Open(dir)
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
