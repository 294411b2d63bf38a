package daemon

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
)

// errAway says that a kept directory is not where it was, or does not answer.
var errAway = errors.New("the directory is away")

// keptDir is a directory that others serve, and the state that kv3fs keep has in it.
type keptDir struct {
	path  string
	root  *os.Root
	state *os.Root
	id    string // in the name of a file in the state directory: it is the directory's wherever it is mounted
	file  os.FileInfo
	locks []*os.File
}

// idPrefix begins the name of an empty file that tells a kept directory from all others. A name needs
// no space on a full disk.
const idPrefix = "dir-"

// openKept opens a directory to keep. With an id it must be the one that has it, and nothing is made.
func openKept(c *KeepConfig, id string) (_ *keptDir, err error) {
	path, err := keptPath(c)
	if err != nil {
		return nil, err
	}
	d := &keptDir{path: path}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.root, err = os.OpenRoot(path); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if d.file, err = d.root.Stat("."); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := writable(path); err != nil {
		return nil, err
	}
	if err := fits(path, c.Keeping.Capacity); err != nil {
		return nil, err
	}
	if d.locks, err = lockServed(path); err != nil {
		return nil, err
	}
	if err := d.openState(id != ""); err != nil {
		return nil, err
	}
	if d.id, err = d.readID(id != ""); err != nil {
		return nil, err
	}
	if id != "" && d.id != id {
		return nil, fmt.Errorf("%s is another directory than the one that was kept (its %s has %s, not %s): put that one back, or restart kv3fs keep to take this one", path, kv3fs.KeepDir, d.id, id)
	}
	return d, nil
}

// keptPath returns the path of a directory to keep, without symbolic links.
func keptPath(c *KeepConfig) (string, error) {
	abs, err := filepath.Abs(c.Dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: mount it, or give the directory where the cache is", c.Dir, err)
	}
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, abs, 0, unix.STATX_TYPE, &st)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", abs, err)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return "", fmt.Errorf("%s is not a directory: give the one where the cache is", abs)
	case c.MustBeMount && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return "", fmt.Errorf("%s is not a mount point: mount its file system there, or leave out --must-be-mount", abs)
	}
	return abs, nil
}

// writable reports why nothing can be removed from a directory.
func writable(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("%s is mounted read-only, so nothing in it can be removed: mount -o remount,rw it, or look at it with --dry-run", dir)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%s cannot be written to by uid %d: %w: run kv3fs keep as the user whose files these are, or as root", dir, os.Geteuid(), err)
	}
	return nil
}

// openState opens the state directory, and makes it if it may be missing.
func (d *keptDir) openState(there bool) error {
	path := filepath.Join(d.path, kv3fs.KeepDir)
	if !there {
		err := d.root.Mkdir(kv3fs.KeepDir, 0o700)
		if served, ok := daemonOf(d.path); ok && errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%s is the mount of a daemon (pid %d) over %s, which hosts share: keep that directory, or give the daemon a --capacity", d.path, served.PID, served.Data)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("create the state directory %s: %w; it must be possible to write there: kv3fs keep agrees in it with those of other hosts on who keeps %s (on a full disk, remove one file by hand first)", path, err, d.path)
		}
	}
	fi, err := d.root.Lstat(kv3fs.KeepDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s has no %s: it is another directory than the one that was kept, or an empty mount point; put that one back, or restart kv3fs keep to take this one", d.path, kv3fs.KeepDir)
	case err != nil:
		return fmt.Errorf("state directory %s: %w", path, err)
	case !fi.IsDir():
		return fmt.Errorf("state directory %s is no directory (%v): move it away", path, fi.Mode())
	}
	const others = 0o022
	st, uid := fi.Sys().(*syscall.Stat_t), os.Geteuid()
	switch {
	case int(st.Uid) != uid:
		return fmt.Errorf("state directory %s belongs to uid %d and this is uid %d: run all keepers of the directory as one user (over NFS with root_squash that cannot be root), or remove it while none runs", path, st.Uid, uid)
	case fi.Mode().Perm()&others != 0:
		return fmt.Errorf("state directory %s can be written to by others (%v): look through it, then 'chmod 700' it", path, fi.Mode())
	}
	if d.state, err = d.root.OpenRoot(kv3fs.KeepDir); err != nil {
		return fmt.Errorf("state directory %s: %w", path, err)
	}
	return nil
}

// readID returns the directory's id, and gives it one if it may have none.
func (d *keptDir) readID(there bool) (string, error) {
	ids, err := d.ids()
	if err == nil && len(ids) == 0 && !there {
		name := idPrefix + rand.Text()
		var f *os.File
		if f, err = d.state.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
			err = f.Close()
		}
		if err == nil {
			ids, err = d.ids() // another host may have been as fast
		}
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("state directory of %s: %w", d.path, err)
	case len(ids) == 0:
		return "", fmt.Errorf("state directory of %s: it has lost its id: restart kv3fs keep if this is the right directory", d.path)
	}
	return slices.Min(ids), nil
}

func (d *keptDir) ids() (ids []string, err error) {
	f, err := d.state.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	for _, name := range names {
		if strings.HasPrefix(name, idPrefix) {
			ids = append(ids, name)
		}
	}
	return ids, err
}

// look reports a directory that is not at its path any more, or does not answer.
func (d *keptDir) look() error {
	is, err := os.Stat(d.path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errAway, err)
	case !os.SameFile(is, d.file):
		return fmt.Errorf("%w: another one is at %s", errAway, d.path)
	}
	if _, err := d.root.Stat("."); err != nil {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	was, err := d.state.Stat(".")
	if err == nil {
		is, err = d.root.Lstat(kv3fs.KeepDir)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: its state: %w", errAway, err)
	case !os.SameFile(is, was):
		return fmt.Errorf("%w: its state: another %s is there", errAway, kv3fs.KeepDir)
	}
	return nil
}

func (d *keptDir) close() {
	if d.state != nil {
		_ = d.state.Close()
	}
	if d.root != nil {
		_ = d.root.Close()
	}
	closeAll(d.locks)
}
