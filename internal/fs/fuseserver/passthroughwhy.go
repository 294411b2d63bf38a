package fuseserver

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

func mayPassthrough(o Options) bool { return o.Passthrough == PassthroughAuto && os.Geteuid() == 0 }

// whyNot returns why no file of the mount takes the kernel's route, with the cure, or
// nothing. offered says that the kernel has offered passthrough.
func (p *passthrough) whyNot(t *tree.Tree, o Options, offered bool) string {
	switch {
	case o.Passthrough == PassthroughOff:
		return "it is switched off: serve without --passthrough off"
	case o.Passthrough == PassthroughShared:
		return "other hosts may change the files, and the kernel would serve what its page cache has"
	case os.Geteuid() != 0:
		return "the daemon is not root: run it as root"
	case !offered:
		return "the kernel offers none: use Linux 6.9 or later, with CONFIG_FUSE_PASSTHROUGH"
	}
	direct, err := p.tryOn(t)
	switch {
	case errors.Is(err, unix.EPERM):
		return "the daemon lacks CAP_SYS_ADMIN outside of user namespaces: run it as root of the host, or in a privileged container"
	case errors.Is(err, unix.ELOOP):
		return "the data directory's file system lies on others (overlay on overlay, or FUSE): use a directory of a disk's own file system"
	case lasting(err):
		return "the kernel refuses it for the data directory's file system: " + err.Error()
	case err == nil && !direct:
		return "the data directory's file system has no O_DIRECT: use another"
	}
	return "" // what fails for a moment now is tried again for each file
}

// tryOn gives the kernel's route to a new file of the data directory, for a moment.
func (p *passthrough) tryOn(t *tree.Tree) (direct bool, err error) {
	fd, direct, err := t.Sample()
	if err != nil {
		return true, nil // a full disk, say, tells nothing of passthrough
	}
	defer unix.Close(fd)
	id, err := p.register(fd)
	if err == nil {
		p.unregister(id)
	}
	return direct, err
}

// failuresPause is the least time between two messages about files that do not take the
// kernel's route.
const failuresPause = time.Minute

// failures says which files do not take the kernel's route although others do.
type failures struct {
	log *slog.Logger

	mu    sync.Mutex
	count int
	said  time.Time
}

func (f *failures) add(h *tree.Handle, err error) {
	f.mu.Lock()
	f.count++
	count, say := f.count, time.Since(f.said) > failuresPause
	if say {
		f.said = time.Now()
	}
	f.mu.Unlock()
	if say {
		f.log.Warn("a file has no passthrough: until it is closed everywhere, it cannot be mapped with MAP_SHARED (ENODEV)",
			"inode", h.Ino(), "err", err, "files so far", count)
	}
}
