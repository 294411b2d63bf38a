package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// scrubber reads a daemon's files to find damage. Neither the keeper nor a file's times take that for a use.
type scrubber struct {
	tree *tree.Tree
	sums *integrity.Store
}

// errNoChecksums is the answer of a daemon that has nothing to compare with.
var errNoChecksums = errors.New("this daemon keeps no checksums: start it with --checksums on, on a local file system (its log says why it keeps none)")

// tellTime is how often a scrub says how far it is.
const tellTime = 200 * time.Millisecond

// scrub is one run.
type scrub struct {
	scrubber
	root   *os.Root
	dev    uint64 // of the data directory
	reader *integrity.Scrubber
	fn     func(admin.Scrubbed) error
	is     admin.ScrubProgress
	left   int64 // bytes to read of files that it has not come to, as they were counted first
	told   time.Time
	pace   pace
}

// Scrub implements admin.Scrubber.
func (s scrubber) Scrub(ctx context.Context, at string, rate int64, fn func(admin.Scrubbed) error) error {
	if s.sums == nil {
		return errNoChecksums
	}
	root, err := os.OpenRoot(s.tree.Dir())
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // it was only read
	reader, err := s.sums.NewScrubber()
	if err != nil {
		return err
	}
	defer reader.Close()
	about, err := root.Stat(".")
	if err != nil {
		return err
	}
	run := &scrub{scrubber: s, root: root, dev: deviceOf(about), reader: reader, fn: fn, pace: pace{rate: rate}}
	at = path.Clean(at)
	err = run.walk(ctx, at, func(_ string, size int64) error {
		run.left += size
		run.is.TotalBytes = run.left
		return run.tell(false)
	})
	if err == nil {
		err = run.walk(ctx, at, func(name string, size int64) error {
			run.left = max(run.left-size, 0)
			return run.file(ctx, name, size)
		})
	}
	if err == nil {
		run.is.TotalBytes = run.is.ReadBytes // files come, go and change their sizes meanwhile
	}
	return errors.Join(err, run.tell(true))
}

func deviceOf(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Dev }

// walk calls fn with the regular files at and below a path, as far as they are on the data directory's device: others have no
// checksums. Files that come or go meanwhile may be left out.
func (s *scrub) walk(ctx context.Context, at string, fn func(name string, size int64) error) error {
	return fs.WalkDir(s.root.FS(), at, func(name string, e fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && name == at:
			return err
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return s.unreadable(name, err)
		case name == tree.StateName:
			return fs.SkipDir
		case !e.IsDir() && !e.Type().IsRegular():
			return nil
		}
		info, err := e.Info()
		switch {
		case err != nil:
			return nil // it has just gone
		case deviceOf(info) != s.dev && name == at:
			return fmt.Errorf("%s is on another file system than the data directory, and of its files there are no checksums", name)
		case deviceOf(info) != s.dev && e.IsDir():
			return fs.SkipDir
		case deviceOf(info) != s.dev, e.IsDir():
			return nil
		}
		return fn(name, min(info.Size(), info.Sys().(*syscall.Stat_t).Blocks*512)) // holes are not read
	})
}

// file reads one file, of which size bytes are thought to be there.
func (s *scrub) file(ctx context.Context, name string, size int64) error {
	f, err := s.open(ctx, name, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return s.unreadable(name, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil // another one has taken its place
	}
	fd, direct := int(f.Fd()), -1
	if d, err := s.open(ctx, name, unix.O_DIRECT); err == nil {
		defer d.Close()
		if same(f, d) {
			direct = int(d.Fd())
		}
	}
	err = s.reader.File(ctx, fd, direct, func(read, verified int64) error {
		s.is.ReadBytes += read
		s.is.VerifiedBytes += verified
		size = max(size-read, 0)
		s.is.TotalBytes = s.is.ReadBytes + size + s.left
		if err := s.tell(false); err != nil {
			return err
		}
		return s.pause(ctx, read)
	}, func(bad integrity.Damage) error {
		s.tree.Damaged(name, fd, bad)
		if bad.Certain {
			s.is.Damaged++
		} else {
			s.is.Doubtful++
		}
		return s.fn(admin.Scrubbed{Damage: &admin.Damage{Path: name, Offset: bad.Off, Bytes: bad.Bytes, Certain: bad.Certain}})
	})
	s.is.Files++
	var errno unix.Errno
	if errors.As(err, &errno) { // of the disk
		return s.unreadable(name, err)
	}
	return err
}

// open opens a file without that its reading counts as a use, if it is ours or we are privileged.
func (s *scrub) open(ctx context.Context, name string, more int) (*os.File, error) {
	how := os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | more
	f, err := s.openPatiently(ctx, name, how|unix.O_NOATIME)
	if errors.Is(err, unix.EPERM) {
		return s.openPatiently(ctx, name, how)
	}
	return f, err
}

// leaseTick is how often a file is tried on which somebody has a lease: the kernel tells nobody that it has ended. The
// daemon's own, by which it learns whether a file is in use, are over within that.
const (
	leaseTick = time.Millisecond
	leaseTime = 5 * time.Second
)

// openPatiently opens a file once nobody has a lease on it.
func (s *scrub) openPatiently(ctx context.Context, name string, how int) (*os.File, error) {
	for end := time.Now().Add(leaseTime); ; time.Sleep(leaseTick) {
		f, err := s.root.OpenFile(name, how, 0)
		switch {
		case !errors.Is(err, unix.EAGAIN):
			return f, err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case time.Now().After(end):
			return nil, fmt.Errorf("another program keeps a lease on it: %w", err)
		}
	}
}

func same(a, b *os.File) bool {
	x, err := a.Stat()
	y, err2 := b.Stat()
	return err == nil && err2 == nil && os.SameFile(x, y)
}

func (s *scrub) unreadable(name string, err error) error {
	s.is.Unreadable++
	return s.fn(admin.Scrubbed{Damage: &admin.Damage{Path: name, Error: err.Error()}})
}

// tell says how far it is, at times or at the end.
func (s *scrub) tell(last bool) error {
	if !last && time.Since(s.told) < tellTime {
		return nil
	}
	s.told = time.Now()
	is := s.is
	return s.fn(admin.Scrubbed{Progress: &is})
}

// pause waits until the rate allows more, after n bytes.
func (s *scrub) pause(ctx context.Context, n int64) error {
	due := s.pace.after(n, time.Now())
	for wait := time.Until(due); wait > 0; wait = time.Until(due) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(wait, tellTime)):
		}
		if err := s.tell(false); err != nil { // a client that has gone ends the scrub
			return err
		}
	}
	return nil
}
