package restart

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
)

// Identity says what state belongs to. State of another one is of no use.
type Identity struct {
	Boot   string `json:"boot"`   // of the kernel
	Data   string `json:"data"`   // the data directory, and whose state it has there
	Format int    `json:"format"` // of all the files together
}

// Dir is the state of a daemon, which has it alone. Its methods may be called concurrently.
type Dir struct {
	path      string
	lock      *os.File
	prior     bool
	discarded string
	room      *quota.Quota
	refused   chan uint32 // capacity 1
}

// ErrInUse says that another daemon has the directory.
var ErrInUse = errors.New("in use by another daemon")

const (
	identityFile = "identity"
	lockFile     = "lock"
	private      = 0o700
)

// Open opens the state in a directory, which it makes if it is missing. State that is not of id
// is removed. The directory must lie in a tmpfs and be the caller's alone, since what is in it is
// believed.
func Open(path string, id Identity) (*Dir, error) { return enter(path, id, nil) }

// Reopen is Open for a process that has executed another program, and inherited the file of Lock, which Reopen owns; nil: it has not.
func Reopen(path string, id Identity, inherited *os.File) (*Dir, error) {
	d, err := enter(path, id, inherited)
	if err != nil && inherited != nil {
		_ = inherited.Close() // err is the first error
	}
	return d, err
}

func enter(path string, id Identity, inherited *os.File) (*Dir, error) {
	if err := os.MkdirAll(path, private); err != nil {
		return nil, fmt.Errorf("state of restarts: %w", err)
	}
	if err := safe(path); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state of restarts: %w", err)
	}
	if inherited != nil && sameFile(lock, inherited) {
		_ = lock.Close() // it would wait for the other one
		lock = inherited
	} else if inherited != nil {
		_ = inherited.Close()
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("state of restarts in %s is %w: stop that one, or give each a --restart-state of its own", path, ErrInUse)
		}
		return nil, fmt.Errorf("state of restarts: lock %s: %w", path, err)
	}
	if err := lock.Truncate(0); err == nil {
		name, _ := os.Hostname()
		_, _ = lock.WriteAt(fmt.Appendf(nil, "%d on %s\n", os.Getpid(), name), 0) // for LockFile only
	}
	d := &Dir{path: path, lock: lock, room: quota.New(roomIn(path)), refused: make(chan uint32, 1)}
	if err := d.adopt(id); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return d, nil
}

// adopt keeps the state that is there if it is of id, and else begins with none.
func (d *Dir) adopt(id Identity) error {
	d.discarded = Differs(d.path, id)
	if d.discarded == "" && Holds(d.path) {
		d.prior = true
		return nil
	}
	if err := d.empty(); err != nil {
		return fmt.Errorf("state of restarts: %w", err)
	}
	text, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return d.Write(identityFile, uint32(id.Format), text)
}

func sameFile(a, b *os.File) bool {
	is, err := a.Stat()
	other, bad := b.Stat()
	return err == nil && bad == nil && os.SameFile(is, other)
}

// LockFile returns the path of the file that says which process has a directory, and on which host.
func LockFile(path string) string { return filepath.Join(path, lockFile) }

// Lock returns the file by whose lock the state is this daemon's alone.
func (d *Dir) Lock() *os.File { return d.lock }

// Holds reports whether a directory has state, of whatever identity.
func Holds(path string) bool {
	_, err := os.Lstat(filepath.Join(path, identityFile))
	return err == nil
}

// Differs says in what the state in a directory is not of id, for people; "": in nothing, or
// there is none. It changes nothing.
func Differs(path string, id Identity) string {
	if !Holds(path) {
		return ""
	}
	version, text, err := readFile(filepath.Join(path, identityFile))
	var has Identity
	if err == nil {
		err = json.Unmarshal(text, &has)
	}
	switch {
	case err == nil && (int(version) != has.Format || has.Format != id.Format):
		return fmt.Sprintf("it has format %d, this version has %d", version, id.Format)
	case err != nil:
		return fmt.Sprint("it cannot be read: ", err)
	case has.Boot != id.Boot:
		return "it is of an earlier boot of this kernel"
	case has.Data != id.Data:
		return fmt.Sprintf("it is of another data directory: %s, not %s", has.Data, id.Data)
	}
	return ""
}

// safe refuses a directory that others could have filled, or that survives a boot.
func safe(path string) error {
	at, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("state of restarts: %w", err)
	}
	st := at.Sys().(*syscall.Stat_t)
	switch {
	case !at.IsDir():
		return fmt.Errorf("state of restarts: %s is no directory: remove it, or give --restart-state another one", path)
	case int(st.Uid) != os.Geteuid() || at.Mode().Perm() != private:
		return fmt.Errorf("state of restarts: %s (uid %d, mode %#o) must belong to uid %d alone: remove it, or 'chmod 700' it if nobody else has written to it", path, st.Uid, at.Mode().Perm(), os.Geteuid())
	case !isTmpfs(path):
		return fmt.Errorf("state of restarts: %s must be in a tmpfs, such as /run: give --restart-state another directory, or off", path)
	}
	return nil
}

func isTmpfs(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC)
}

// Place returns where the state of a daemon is that was given no directory, or why it has none. name
// is a short name of the data directory.
func Place(name string) (path, why string) {
	const run, top = "/run", "/run/kv3fs"
	switch {
	case os.Geteuid() != 0:
		return "", "the daemon is not root"
	case !isTmpfs(run):
		return "", "/run is no tmpfs"
	}
	if err := os.Mkdir(top, private); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Sprint("cannot make ", top, ": ", err)
	}
	return filepath.Join(top, name), ""
}

// Prior reports whether there is state of a predecessor.
func (d *Dir) Prior() bool { return d.prior }

// Discarded says why the state of a predecessor was thrown away; "": it was not.
func (d *Dir) Discarded() string { return d.discarded }

// Path returns the path of a file of its owner's making. Name has at most one slash.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

// Make makes a directory for files of one kind, if it is missing.
func (d *Dir) Make(name string) error {
	if err := os.Mkdir(d.Path(name), private); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("state of restarts: %w", err)
	}
	return nil
}

// Write replaces a small file, so that whoever reads it has all of the old bytes or all of the new ones.
func (d *Dir) Write(name string, version uint32, payload []byte) error {
	path := d.Path(name)
	if err := os.WriteFile(path+newSuffix, appendFrame(nil, version, payload), 0o600); err != nil {
		_ = os.Remove(path + newSuffix) // it takes what room there was
		return fmt.Errorf("state of restarts: %w", err)
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return fmt.Errorf("state of restarts: %w", err)
	}
	return nil
}

// newSuffix ends the name of a file that is being written.
const newSuffix = ".new"

// Read returns what Write has written. fs.ErrNotExist: nothing. ErrDamaged: it is not whole.
func (d *Dir) Read(name string) (version uint32, payload []byte, err error) {
	return readFile(d.Path(name))
}

func readFile(path string) (version uint32, payload []byte, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, nil, err
	}
	version, payload, rest, err := cutFrame(b)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: %d bytes follow its record", ErrDamaged, len(rest))
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", path, err)
	}
	return version, payload, nil
}

// Names returns the names of the files in a directory of Make, without those that a daemon was
// killed while it wrote.
func (d *Dir) Names(name string) ([]string, error) {
	entries, err := os.ReadDir(d.Path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("state of restarts: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), newSuffix) {
			if d.lock == nil { // another daemon's, see Look
				continue
			}
			_ = d.Remove(filepath.Join(name, e.Name()))
			continue
		}
		names = append(names, e.Name())
	}
	return names, nil
}

// Remove removes a file, if it is there.
func (d *Dir) Remove(name string) error {
	if err := os.Remove(d.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("state of restarts: %w", err)
	}
	return nil
}

// empty removes all but the lock.
func (d *Dir) empty() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == lockFile {
			continue
		}
		if err := os.RemoveAll(d.Path(e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Close leaves the state to a successor.
func (d *Dir) Close() error { return d.lock.Close() }

// Clear removes the state, because no successor is expected, and closes d.
func (d *Dir) Clear() error {
	err := d.empty()
	if err == nil {
		err = os.RemoveAll(d.path)
	}
	return errors.Join(err, d.Close())
}
