package blockfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// temporary is the file of a block that is being written. Its name is
// <key>.<writer>-<number>, so that it tells writers apart, which other programs' names do not: see
// kv3fs.IsTemporary.
type temporary struct {
	root *root
	path string
	ino  uint64
	at   Place // of the block
	draft
}

// create creates a temporary file in the root where the block is to be. It takes over the
// caller's place.
func (s *Store) create(key kv.Key) (*temporary, error) {
	place, err := s.o.Format.Place(key)
	if err != nil { // since Save began
		return nil, err
	}
	r := s.roots[s.o.Format.Root(key, len(s.roots))]
	path := s.temporaryPath(r, key)
	create := func() (*os.File, error) {
		return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, s.o.FileMode|sums.Mark)
	}
	f, err := s.retryOpen(create)
	if gone(err) { // the directory was removed
		if err = makeDirs(r.dir, s.o.TempDir); err == nil {
			f, err = create()
		}
		if gone(err) {
			err = fmt.Errorf("%s is gone: make it again, or mount what belongs there: %w", r.dir, err)
		}
	}
	if err != nil {
		return nil, err
	}
	st, err := status(int(f.Fd()), "")
	var file transfer.File
	if err == nil {
		file, err = s.engine.Open(f)
	}
	if err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	t := &temporary{root: r, path: path, ino: st.Ino, at: place}
	if err := s.writeHead(file, key, t.at); err != nil {
		_ = file.Close()
		os.Remove(path)
		return nil, err
	}
	s.drafts.add(t, file)
	return t, nil
}

// temporaryPath returns a name for a new temporary file.
func (s *Store) temporaryPath(r *root, key kv.Key) string {
	return filepath.Join(r.dir, s.o.TempDir, fmt.Sprintf("%s.%s-%d", key, s.writer, s.written.Add(1)))
}

// drop removes a temporary file.
func (s *Store) drop(t *temporary) {
	_ = os.Remove(t.path) // if that fails, sweep removes it when it is old
	_ = s.closeNow(t)
}

// closeNow closes the file of a block, if it is open.
func (s *Store) closeNow(t *temporary) error {
	f := s.drafts.take(t)
	if f == nil {
		return nil
	}
	defer s.drafts.leave()
	return f.Close()
}

// giveUp drops a block that is no longer being written, and then calls done.
func (s *Store) giveUp(b *assembly.Block[*temporary], done func()) {
	s.counters.DroppedBlocks.Add(1)
	s.opens.Go(workerpool.Job{
		Run: func() { s.drop(b.Payload) },
		Done: func(error) {
			s.unfinished.Finish(b)
			done()
		},
	})
}

// publish makes a whole block visible.
func (s *Store) publish(t *temporary, key kv.Key, sums []uint64) (err error) {
	s.committing.Store(key, nil)
	defer s.committing.Delete(key)
	if young := s.young.Load(); young != nil {
		young.Store(key, nil)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(t.path)
		}
	}()
	if err := t.root.sums.Record(key, sums); err != nil {
		_ = s.closeNow(t)
		return err
	}
	if err := s.closeNow(t); err != nil {
		return err
	}
	if err := s.name(t, key, sums); err != nil {
		return err
	}
	if err := s.nameSide(t.root, key, t.at); err != nil {
		t.removeNamed() // nobody finds it, and it may be what fills the file system
		return err
	}
	s.forgetHandle(key) // of the file that was there, if it was not an acceptable block
	s.unreadable.saved(key)
	// A Delete may have made the record void before the block was in its place.
	return t.root.sums.RecordAgain(key, sums)
}

// removeNamed removes a block that has its name.
func (t *temporary) removeNamed() {
	for _, path := range []string{t.root.in(t.at), t.root.spare(t.at)} {
		if st, err := status(unix.AT_FDCWD, path); err == nil && st.Ino == t.ino {
			_ = os.Remove(path)
		}
	}
}

// name gives a block its name, or its spare one if what has its name cannot be replaced.
func (s *Store) name(t *temporary, key kv.Key, own []uint64) error {
	path := t.root.in(t.at)
	err := s.nameAs(path, t, key, own)
	if !lost(err) {
		return err
	}
	spare := t.root.spare(t.at)
	if _, failed := status(unix.AT_FDCWD, path); !lost(failed) || s.nameAs(spare, t, key, own) != nil {
		return err
	}
	// If the file system was only away for a moment, nobody looks at the spare place any more.
	if _, failed := status(unix.AT_FDCWD, path); !lost(failed) {
		t.path = spare
		return s.nameAs(path, t, key, own)
	}
	return nil
}

// nameAs is name for one of the two, and makes its directory if there is none.
func (s *Store) nameAs(path string, t *temporary, key kv.Key, own []uint64) error {
	err := s.rename(t, path, key, own)
	if gone(err) {
		if err = os.MkdirAll(filepath.Dir(path), dirMode); err == nil {
			err = s.rename(t, path, key, own)
		}
	}
	return err
}

// rename moves a whole block to where it is found, unless another process has stored the block
// meanwhile: who is loading it, layer by layer, must not get the rest from another writer.
func (s *Store) rename(t *temporary, path string, key kv.Key, own []uint64) error {
	err := unix.Renameat2(unix.AT_FDCWD, t.path, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	switch {
	case err == nil, gone(err):
		return err
	case errors.Is(err, fs.ErrExist):
		if s.hasOther(key, own) {
			return os.Remove(t.path)
		}
	}
	return os.Rename(t.path, path) // over what is no block, or on a file system without the flag
}

// hasOther reports whether a block is there that another process has recorded with other
// checksums. One without a record of its own is none, though the caller's own is there.
func (s *Store) hasOther(key kv.Key, own []uint64) bool {
	other, err := s.any(key, time.Now(), func(at sighting) (bool, error) {
		found, err := at.root.sums.Again(key, time.Now())
		isOther := func(variant []uint64) bool { return !slices.Equal(variant, own) }
		return slices.ContainsFunc(found.Sums, isOther) && !s.unreadable.has(key, at.st.Ino), err
	})
	return other && err == nil
}

// sweep removes what dead writers have left. It counts the age from the time that the file
// system gives to a new file.
func (s *Store) sweep(r *root) {
	dir := filepath.Join(r.dir, s.o.TempDir)
	probe := s.temporaryPath(r, kv.Key{})
	if err := os.WriteFile(probe, nil, 0o644); err != nil {
		return
	}
	defer os.Remove(probe)
	now, err := os.Stat(probe)
	if err != nil {
		return
	}
	if paired, ok := s.o.Format.(Paired); ok {
		s.sweepPairs(r, paired, ".", now.ModTime())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !kv3fs.IsTemporary(e.Name()) || strings.Contains(e.Name(), s.writer) {
			continue
		}
		// Its writer's name is in its own, so one that a restore has put back is of nobody, too.
		path := filepath.Join(dir, e.Name())
		if st, err := status(unix.AT_FDCWD, path); err == nil && s.leftovers.isLeft(path, st, now.ModTime().Sub(modified(st)), s.o.SweepAge) {
			_ = os.Remove(path)
		}
	}
}
