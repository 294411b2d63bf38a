package tree

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
)

const (
	// openat2 takes PATH_MAX bytes with the NUL; longer paths are opened in steps.
	longestStepBytes = 4000
	// An open may fail with EAGAIN: a scoped lookup because of a rename anywhere, and one with
	// O_NONBLOCK because another daemon holds a lease for a moment, see hasWriter.
	openTries = 64
	openPause = time.Millisecond // after a quarter of them

	resolveRules = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	statMask     = unix.STATX_BASIC_STATS | unix.STATX_BTIME
)

// openBeneath opens rel below dir. It never leaves dir and follows no symbolic link,
// whatever other processes do there at the same time.
func openBeneath(dir int, rel string, flags int) (int, error) {
	if len(rel) <= longestStepBytes {
		return openStep(dir, rel, flags)
	}
	cut := strings.LastIndexByte(rel[:longestStepBytes], '/')
	if cut <= 0 {
		return -1, unix.ENAMETOOLONG
	}
	step, err := openStep(dir, rel[:cut], unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer unix.Close(step)
	return openBeneath(step, rel[cut+1:], flags)
}

func openStep(dir int, rel string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: resolveRules}
	return openPatiently(func() (int, error) { return unix.Openat2(dir, rel, &how) })
}

func openPatiently(open func() (int, error)) (int, error) {
	for try := 0; ; try++ {
		fd, err := open()
		switch {
		case err == nil:
			return fd, nil
		case err == unix.EINTR:
		case err == unix.EAGAIN && try < openTries:
			if try > openTries/4 {
				time.Sleep(openPause)
			}
		default:
			return -1, err
		}
	}
}

func statFD(fd int) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, statMask, &st)
	return st, err
}

func statAt(dir int, name string) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, statMask, &st)
	return st, err
}

// procPath returns a path to an open descriptor, also an O_PATH one, for calls that
// take only a path.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// pathLocked returns the path of a place, relative to the data directory.
func (t *Tree) pathLocked(at place) string {
	if at.parent == nil {
		return "."
	}
	size, depth := 0, 0
	for p := at; p.parent != nil; p = p.parent.place {
		size += len(p.name) + 1
		depth++
	}
	path := make([]byte, size)
	for p := at; p.parent != nil; p = p.parent.place {
		size--
		if size < len(path)-1 {
			path[size] = '/'
		}
		size -= len(p.name)
		copy(path[size:], p.name)
	}
	return string(path[:len(path)-1])
}

// openNode opens the inode of n and returns its status. as is nil for the
// daemon's own rights.
func (t *Tree) openNode(n *node, flags int, as *cred.Caller) (int, unix.Statx_t, error) {
	t.mu.RLock()
	rel := t.pathLocked(n.place)
	t.mu.RUnlock()
	fd, st, err := t.openIdentity(n, rel, flags, as)
	if err == nil || !mayHaveMoved(err) && !(errors.Is(err, unix.EACCES) && t.severalNames(n)) {
		return fd, st, err
	}
	// The inode may be in the middle of a rename, or have several names, only some of
	// which the caller can reach. While no rename runs, the tree is up to date and the
	// answer is final.
	defer t.moves.exclude()()
	var refused error
	for _, rel := range t.paths(n) {
		if fd, st, err = t.openIdentity(n, rel, flags, as); err == nil {
			return fd, st, nil
		}
		if errors.Is(err, unix.EACCES) {
			refused = err
		}
	}
	if refused != nil {
		return -1, st, refused
	}
	if mayHaveMoved(err) {
		if fd, st, orphanErr := t.openOrphan(n, flags, as); orphanErr != unix.ENOENT {
			return fd, st, orphanErr
		}
	}
	return fd, st, err
}

func (t *Tree) severalNames(n *node) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.links[n]) > 0
}

func (t *Tree) paths(n *node) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := []string{t.pathLocked(n.place)}
	for at := range t.links[n] {
		all = append(all, t.pathLocked(at))
	}
	return all
}

func mayHaveMoved(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) ||
		errors.Is(err, unix.ESTALE) || errors.Is(err, unix.ELOOP)
}

// openIdentity opens rel. It fails with ESTALE if the inode there is not that of n.
func (t *Tree) openIdentity(n *node, rel string, flags int, as *cred.Caller) (int, unix.Statx_t, error) {
	fd := -1
	open := func() (err error) {
		fd, err = openBeneath(t.rootFD, rel, flags)
		return err
	}
	var err error
	if as == nil {
		err = open()
	} else {
		err = cred.RunAs(*as, open)
	}
	if err != nil {
		return -1, unix.Statx_t{}, err
	}
	st, err := statFD(fd)
	if err == nil && (t.identityOf(&st) != n.key || uint32(st.Mode)&unix.S_IFMT != n.kind) {
		err = unix.ESTALE
	}
	if err == nil && st.Nlink == 0 && t.usage != nil {
		err = unix.ESTALE // it was evicted at this moment: what is written to it would be lost
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// inDir calls fn with a descriptor of directory d.
func (t *Tree) inDir(d *node, fn func(fd int) error) error {
	if d == t.root {
		return fn(t.rootFD)
	}
	fd, _, err := t.openNode(d, unix.O_PATH|unix.O_DIRECTORY, nil)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fn(fd)
}

// hidden reports whether name in d is hidden from clients. The data directory may accept
// other spellings of the name, so code that has the entry's status uses hiddenInode.
func (t *Tree) hidden(d *node, name string) bool { return d == t.root && t.isState(name) }

// isState reports whether an entry of the data directory is kv3fs's own: the daemon's, or in a shared directory the keepers' of
// all hosts, whose lease must not be in clients' reach. Any other directory may be kept through its mount.
func (t *Tree) isState(name string) bool {
	return name == StateName || t.sharing.Uncached && name == kv3fs.KeepDir
}

func (t *Tree) hiddenInode(st *unix.Statx_t) bool {
	is := t.identityOf(st)
	return is == t.state || is == t.kept
}
