package blockfiles

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
)

// touchGap is how old a modification time must be before Touch sets it.
const touchGap = time.Minute

// acceptable reports whether a block with such records, in a file with this mode, may be
// returned: it can be verified, or another program wrote it and checksums are not required.
func (s *Store) acceptable(r *root, found sums.Finding, mode uint16) bool {
	switch {
	case found.Foreign:
		return false
	case len(found.Sums) > 0:
		return true
	}
	return s.o.Checksums != kv.ChecksumsRequire && r.sums.OfOthers(mode)
}

// open finds a block and opens it. Its records and its size decide whether it is the
// block, a damaged one, or not ours.
func (s *Store) open(key kv.Key) (*handle, error) {
	if h := s.handles.take(key); h != nil {
		return h, nil
	}
	epoch := s.handles.epoch()
	outcome := error(kv.ErrMiss)
	for r, place := range s.spotsOf(key) {
		h, err := s.openIn(r, key, place)
		if err == nil {
			s.handles.add(h, epoch)
			return h, nil
		}
		if err = orMiss(err); err != kv.ErrMiss {
			outcome = err
		}
	}
	if outcome == kv.ErrMiss {
		h, err := s.openInPack(key)
		if err == nil {
			s.handles.add(h, epoch)
			return h, nil
		}
		outcome = orMiss(err)
	}
	return nil, outcome
}

// orMiss returns a miss in place of an ESTALE: another host has removed the file, or put another in its place.
func orMiss(err error) error {
	if errors.Is(err, unix.ESTALE) {
		return kv.ErrMiss
	}
	return err
}

func (s *Store) openIn(r *root, key kv.Key, place Place) (_ *handle, err error) {
	f, path, err := s.openPlace(r, key, place)
	if gone(err) {
		return nil, kv.ErrMiss
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	h := &handle{key: key, root: r, path: path, at: place, opened: time.Now()}
	st, err := status(int(f.Fd()), "")
	if err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	h.ino, h.mode = st.Ino, st.Mode
	if h.found, err = r.sums.Find(key, h.opened); err != nil {
		return nil, err
	}
	h.version = versionOf(st, h.found)
	switch {
	case !isBlock(st, place):
		if h.found.Known { // or another deployment has put a block of its own there
			if h.found, err = r.sums.Again(key, time.Now()); err != nil {
				return nil, err
			}
		}
		if !h.found.Known || r.sums.OfOthers(st.Mode) || slices.Contains(h.found.Others, int64(st.Size)-place.Bytes+s.o.Layout.BlockBytes) {
			return nil, kv.ErrMiss // of another program, or of a deployment whose blocks have another size
		}
		s.quarantine(h)
		return nil, h.damage(fmt.Sprintf("it has %d bytes instead of %d", st.Size, place.Bytes))
	case !s.acceptable(r, h.found, st.Mode), r.lacksSide(place):
		return nil, kv.ErrMiss
	case len(h.found.Sums) == 0 && !s.isFinished(r, key, place, f):
		return nil, kv.ErrMiss
	case len(h.found.Sums) > 0:
		var wrong *headError
		if err := s.checkHead(key, place, f); errors.As(err, &wrong) {
			if r.sums.OfOthers(st.Mode) {
				return nil, cmp.Or(s.disown(h), error(kv.ErrMiss))
			}
			s.quarantine(h)
			return nil, h.damage(wrong.Error())
		} else if err != nil {
			s.unreadable.read(key, h.ino, err)
			return nil, err
		}
	}
	if s.o.Touch && time.Since(time.Unix(st.Mtime.Sec, 0)) > touchGap {
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, path, nil, 0) // a reader without the right to do so changes nothing
	}
	if h.file, err = s.engine.Open(f); err != nil {
		s.unreadable.opened(key, h.ino, err)
		return nil, err
	}
	return h, nil
}

// versionOf tells the files that a block's name has had apart. An inode number is used again,
// and a time of birth is that of a clock tick; of another program's block on a file system
// without such times, as a mount, only the number is known.
func versionOf(st unix.Statx_t, found sums.Finding) uint64 {
	var raw []byte
	for _, n := range []uint64{uint64(st.Dev_major), uint64(st.Dev_minor), st.Ino, uint64(st.Btime.Sec), uint64(st.Btime.Nsec)} {
		raw = binary.LittleEndian.AppendUint64(raw, n)
	}
	for _, variant := range found.Sums {
		for _, sum := range variant {
			raw = binary.LittleEndian.AppendUint64(raw, sum)
		}
	}
	return max(blockhead.Sum(raw), 1)
}

// openPlace opens the file of a block where it is.
func (s *Store) openPlace(r *root, key kv.Key, place Place) (f *os.File, path string, err error) {
	path = r.in(place)
	if f, err = s.openFile(path); err == nil || gone(err) || kv.IsAway(err) {
		return f, path, err
	}
	where, st, failed := find(r, place)
	switch {
	case gone(failed):
		return nil, where, failed
	case failed != nil:
		return nil, path, err
	case where != path:
		f, err = s.openFile(where)
	}
	if err != nil {
		s.unreadable.opened(key, st.Ino, err)
	}
	return f, where, err
}

const (
	// staleTime is for how long an open is tried again that answers ESTALE: GlusterFS does for about a second once another host has
	// replaced the file.
	staleTime  = 2 * time.Second
	stalePause = 50 * time.Millisecond
)

// openFile opens a file.
func (s *Store) openFile(path string) (f *os.File, err error) {
	for end := time.Now().Add(s.stale); ; {
		f, err = s.retryOpen(func() (*os.File, error) {
			// O_NONBLOCK: a pipe of that name must not block.
			return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
		})
		if !errors.Is(err, unix.ESTALE) {
			return f, err
		}
		if away := s.staleRoot(path); away != nil {
			return nil, away
		}
		if time.Now().After(end) {
			return nil, err
		}
		pause := time.NewTimer(stalePause)
		select {
		case <-pause.C:
		case <-s.group.Closing().Done():
			pause.Stop()
			return f, err
		}
	}
}

// staleRoot is stale for the root that a path is in.
func (s *Store) staleRoot(path string) error {
	for _, r := range s.roots {
		if strings.HasPrefix(path, r.dir+"/") {
			return r.stale()
		}
	}
	return nil
}

// retryOpen opens a file. If the process or the host has too many open, it closes those
// without users and tries once more.
func (s *Store) retryOpen(open func() (*os.File, error)) (*os.File, error) {
	f, err := open()
	if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
		return f, err
	}
	for _, h := range s.handles.close() {
		_ = h.file.Close()
	}
	return open()
}
