package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/health"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// shortestLook is the least time that a file system gets to answer before it counts as sick.
const shortestLook = time.Second

// dataUser uses the file system under a data directory as clients do. Like the tree, it reaches it by a descriptor of the
// directory: if the file system is mounted again, its path leads to a mount that the tree does not use.
type dataUser struct {
	dir  string
	root *os.File
	dev  uint64
	file string // one of this host's state, below dir; "": there is none
	n    atomic.Int64
}

func newDataUser(data, stateDir string) (*dataUser, error) {
	root, err := os.OpenFile(data, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", data, err)
	}
	info, err := root.Stat()
	if err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("data directory %s: %w", data, err)
	}
	u := &dataUser{dir: data, root: root, dev: deviceOf(info)}
	if stateDir != "" {
		if u.file, err = filepath.Rel(data, filepath.Join(stateDir, hostFile)); err != nil {
			_ = root.Close()
			return nil, fmt.Errorf("state directory %s: %w", stateDir, err)
		}
	}
	return u, nil
}

func (u *dataUser) close() { _ = u.root.Close() }

// look returns an error if the file system does not work. It may be called concurrently, since it may hang.
func (u *dataUser) look() error {
	raw, err := u.root.SyscallConn()
	if err != nil {
		return nil // the daemon stops
	}
	var found error
	if raw.Control(func(fd uintptr) { found = u.use(int(fd)) }) != nil || found == nil {
		return nil
	}
	// Does the path lead to a file system that works?
	var is unix.Stat_t
	if err := unix.Stat(u.dir, &is); err != nil {
		return found
	}
	if is.Dev != u.dev {
		return health.NeedsRestart{Err: fmt.Errorf("%w, and %s is another mount now than at the start", found, u.dir)}
	}
	return found
}

// use looks up a name that the kernel cannot know yet, and reads the file.
func (u *dataUser) use(root int) error {
	var st unix.Statx_t
	if err := unix.Statx(root, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st); troubled(err) {
		return err // the mount's root is asked for before each name
	}
	name := fmt.Sprintf("%s-look-%d-%d", tree.StateName, os.Getpid(), u.n.Add(1))
	if err := unix.Statx(root, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st); troubled(err) {
		return err
	}
	if u.file == "" {
		return nil
	}
	fd, err := unix.Openat(root, u.file, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return onlyTrouble(err)
	}
	f := os.NewFile(uintptr(fd), u.file)
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
	_, err = io.Copy(io.Discard, f)
	_ = f.Close()
	return onlyTrouble(err)
}

func onlyTrouble(err error) error {
	if troubled(err) {
		return err
	}
	return nil // other errors are answers: dataWatch says when the directory has gone
}

// troubled reports whether an error is one of the file system itself.
func troubled(err error) bool {
	return health.Lost(err) || errors.Is(err, unix.EIO) || errors.Is(err, unix.ESTALE)
}

// answers returns an error if the file system does not work, or has not answered for shortestLook, which may be long before
// it counts as hung: --deadline may be minutes.
func answers(h *health.Store) func() error {
	return func() error {
		if waits := h.Waits(); waits >= shortestLook {
			return fmt.Errorf("the data directory's file system has not answered for %v", waits)
		}
		return h.Err()
	}
}

// healthMetric exports whether the data directory's file system works.
func healthMetric(h *health.Store) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kv3fs_data_works",
		Help: "1 while the data directory's file system works; 0 while it fails or hangs: the log has the cause.",
	}, func() float64 {
		if h.Err() != nil {
			return 0
		}
		return 1
	})
}
