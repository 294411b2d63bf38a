package daemon

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// In tree.StateName:
const (
	hostsDir = "hosts" // a directory for each host: its page index, and who has it
	bootsDir = "boots" // an empty file for each running kernel with a daemon, which locks it
)

// state is this host's part of tree.StateName. Many hosts may serve a shared directory,
// but each kernel only once, whatever namespaces its daemons are in. The file of semaphore
// names lets the next daemon clean up after one that was killed.
type state struct {
	dir   string   // "": there is none, because nothing can be written
	dead  []string // state directories that no running daemon uses, dir among them
	locks []*os.File
	// passed has the locks of the daemon that this process has been, and passes ours on to the next one.
	passed *fdstore.Store
}

// errForeign is an error of ownDir: the directory is another user's.
var errForeign = errors.New("somebody else may have planted it")

// openState finds or makes the state of the host me in a data directory, and locks it. The
// kernel releases the locks when the process exits, even if it is killed.
func openState(data string, me hostID, passed *fdstore.Store, log *slog.Logger) (_ *state, err error) {
	top, err := stateDir(data, log)
	if err != nil {
		return nil, err
	}
	s := &state{passed: passed}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if me.Boot != "" {
		if err := s.lock(data, filepath.Join(top, bootsDir, me.Boot)); err != nil {
			return nil, err
		}
	}
	local := isLocal(data)
	h, err := findHost(top, me, local, log)
	if err != nil {
		return nil, err
	}
	if err := s.lock(data, filepath.Join(h.path, "lock")); err != nil {
		return nil, err
	}
	// On a local disk every other daemon is one of this kernel, and perhaps of version 0.1,
	// which locks nothing else.
	s.dead = []string{h.path}
	for _, other := range h.others {
		if !local && other.id.Boot != me.Boot {
			continue // nothing of it is on this kernel, and it may be starting at this moment
		}
		switch lock, err := tryLock(filepath.Join(other.path, "lock"), 0); {
		case err == nil:
			s.dead = append(s.dead, other.path)
			lock.Close()
		case local && errors.Is(err, unix.EWOULDBLOCK):
			return nil, served(data, filepath.Join(other.path, "lock"))
		}
	}
	if err := writeHostID(h.path, me); err != nil {
		return nil, err
	}
	s.dir = h.path
	s.removeOldBoots(top, me.Boot, h.id.Boot, local)
	return s, nil
}

// readonlyState is openState for a daemon that changes nothing: it does without where it
// cannot write.
func readonlyState(data string, me hostID, passed *fdstore.Store, log *slog.Logger) (*state, error) {
	s, err := openState(data, me, passed, log)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, errForeign) {
		log.Info("the data directory cannot be written to: without a page service, and nothing keeps a second daemon from serving it", "err", err)
		return &state{}, nil
	}
	return s, err
}

// pagesHome returns the state of the host me for a page service alone, which runs beside a
// daemon: the journal has a lock of its own.
func pagesHome(data string, me hostID, log *slog.Logger) (dir string, err error) {
	top, err := stateDir(data, log)
	if err != nil {
		return "", err
	}
	h, err := findHost(top, me, isLocal(data), log)
	if err != nil {
		return "", err
	}
	return h.path, writeHostID(h.path, me)
}

// lock locks a file for the life of the daemon.
func (s *state) lock(data, file string) error {
	name := lockName(file)
	lock, err := takeLock(file, s.passed.Take(name))
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return served(data, file)
	case err != nil:
		return fmt.Errorf("lock data directory %s: %w", data, err)
	}
	s.locks = append(s.locks, lock)
	s.passed.Pass(name, lock)
	noteHolder(lock)
	return nil
}

// noteHolder writes into a lock's file who holds it. The file of an inherited lock is where the process before has stopped writing.
func noteHolder(lock *os.File) {
	if err := lock.Truncate(0); err == nil {
		name, _ := os.Hostname()
		_, _ = lock.WriteAt(fmt.Appendf(nil, "%d on %s\n", os.Getpid(), name), 0)
	}
}

// served says who has locked a file.
func served(data, file string) error {
	holder, _ := os.ReadFile(file)
	return fmt.Errorf("data directory %s is %w, by process %s, perhaps of another container: stop that one first (hosts that share the directory and take themselves for the same one each need an --identity)",
		data, errServed, strings.TrimSpace(string(holder)))
}

// lockName is the name of the descriptor by which a process that executes another program keeps a lock.
func lockName(file string) string { return fmt.Sprintf("kv3fs-lock-%.8x", sha256.Sum256([]byte(file))) }

// takeLock is tryLock for a file that this process may have locked before it executed its program; inherited is nil if not.
func takeLock(file string, inherited *os.File) (*os.File, error) {
	if inherited == nil {
		return tryLock(file, os.O_CREATE)
	}
	is, err := os.Lstat(file)
	of, bad := inherited.Stat()
	if err == nil && bad == nil && os.SameFile(is, of) && unix.Flock(int(inherited.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		return inherited, nil
	}
	inherited.Close()
	return tryLock(file, os.O_CREATE)
}

func tryLock(file string, flags int) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_RDWR|syscall.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", file, err)
	}
	return f, nil
}

// removeOldBoots removes the lock files of kernels that have ended: on a local disk all
// others, elsewhere this host's last one.
func (s *state) removeOldBoots(top, boot, last string, local bool) {
	entries, _ := os.ReadDir(filepath.Join(top, bootsDir))
	for _, e := range entries {
		if e.Name() == boot || !local && e.Name() != last {
			continue
		}
		file := filepath.Join(top, bootsDir, e.Name())
		if lock, err := tryLock(file, 0); err == nil {
			_ = os.Remove(file)
			lock.Close()
		}
	}
}

// foundHost is a state directory.
type foundHost struct {
	path   string
	id     hostID
	used   time.Time
	others []foundHost
}

// findHost returns the state directory of the host me, which it makes if there is none. It
// says which others it has found if me begins with an empty page index, or is alone on its
// disk.
func findHost(top string, me hostID, local bool, log *slog.Logger) (foundHost, error) {
	entries, err := os.ReadDir(filepath.Join(top, hostsDir))
	if err != nil {
		return foundHost{}, fmt.Errorf("state directory: %w", err)
	}
	var all []foundHost
	for _, e := range entries {
		h := foundHost{path: filepath.Join(top, hostsDir, e.Name())}
		if err := ownDir(h.path, log); err != nil {
			return foundHost{}, err
		}
		if h.id, err = readHostID(h.path); err != nil {
			return foundHost{}, err
		}
		if info, err := os.Stat(filepath.Join(h.path, "lock")); err == nil {
			h.used = info.ModTime()
		}
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b foundHost) int { return b.used.Compare(a.used) })
	own := chooseHost(all, me, local)
	fresh := own < 0
	if fresh {
		h, err := newHost(top, me)
		if err != nil {
			return foundHost{}, err
		}
		own, all = 0, slices.Insert(all, 0, h)
	}
	h := all[own]
	h.others = slices.Delete(all, own, own+1)
	if h.id.Identity != "" && h.id.Identity != me.Identity {
		log.Info("took over the page index of this host under an earlier name", "dir", h.path, "was", h.id.Identity, "is", me.Identity)
	}
	if local || fresh {
		for _, other := range h.others {
			if _, err := os.Stat(filepath.Join(other.path, pagesDir)); err == nil {
				log.Warn("there is a page index of another host, or of this one under another name, which this daemon does not use",
					"dir", other.path, "host", other.id.Host, "cure", "--identity "+other.name()+" to go on with it; or remove the directory, if that host serves this data no more")
			}
		}
	}
	return h, nil
}

// name is what --identity must say to choose a state directory.
func (h foundHost) name() string {
	if h.id.Identity != "" {
		return h.id.Identity
	}
	return filepath.Base(h.path)
}

// chooseHost returns which of the state directories, the most recently used one first, belongs
// to the host me; -1 if none does. On a local disk the only one does, whoever made it: the
// host had another name, or the disk was in another one.
func chooseHost(all []foundHost, me hostID, local bool) int {
	if i := slices.IndexFunc(all, func(h foundHost) bool { return h.name() == me.Identity }); i >= 0 {
		return i
	}
	if i := slices.IndexFunc(all, func(h foundHost) bool { return h.id.sameHost(me) }); i >= 0 {
		return i
	}
	if local && len(all) == 1 {
		return 0
	}
	return -1
}

// newHost makes a state directory for the host me.
func newHost(top string, me hostID) (foundHost, error) {
	path := filepath.Join(top, hostsDir, me.Identity)
	err := os.Mkdir(path, 0o700)
	for n := 2; errors.Is(err, os.ErrExist); n++ { // it has become another host's
		if id, bad := readHostID(path); bad == nil && (id.Identity == me.Identity || id.Identity == "") {
			err = nil // made just now, by this host's page service
			break
		}
		path = filepath.Join(top, hostsDir, fmt.Sprintf("%s-%d", me.Identity, n))
		err = os.Mkdir(path, 0o700)
	}
	if err != nil {
		return foundHost{}, fmt.Errorf("make a state directory: %w", err)
	}
	return foundHost{path: path}, nil
}

// isLocal reports whether a file system is known to be this kernel's alone.
func isLocal(dir string) bool {
	const bcachefs, zfs = 0xca451a4e, 0x2fc12fc1
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return false
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, bcachefs, zfs,
		unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		return true
	}
	return false
}

// stateDir returns the state directory of a data directory, which it makes if it is missing.
func stateDir(data string, log *slog.Logger) (string, error) {
	top := filepath.Join(data, tree.StateName)
	for _, dir := range []string{top, filepath.Join(top, hostsDir), filepath.Join(top, bootsDir)} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("create the state directory of data directory %s: %w", data, err)
		}
		if err := ownDir(dir, log); err != nil {
			return "", err
		}
	}
	return top, nil
}

// ownDir refuses a state directory that another user created or any user can write to: in a
// data directory that is open to all, it could have been planted. That its group can write to
// it is mended: Kubernetes makes it so for an fsGroup at every start of a pod.
func ownDir(dir string, log *slog.Logger) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st := fi.Sys().(*syscall.Stat_t)
	const everybody, private = 0o002, 0o700
	switch uid := os.Geteuid(); {
	case !fi.IsDir():
		return fmt.Errorf("state directory %s is no directory (%v): %w; move it away", dir, fi.Mode(), errForeign)
	case int(st.Uid) != uid:
		return fmt.Errorf("state directory %s belongs to uid %d, so %w: if it is kv3fs's own, which holds the page index, run 'chown -R %d %s', or kv3fs as uid %d", dir, st.Uid, errForeign, uid, dir, st.Uid)
	case fi.Mode().Perm()&everybody != 0:
		return fmt.Errorf("state directory %s: every user can write to it (%v), so somebody else may have changed it: look through it, then 'chmod 700' it; it holds the page index", dir, fi.Mode())
	case fi.Mode().Perm() != private:
		if err := os.Chmod(dir, private); err != nil {
			return fmt.Errorf("state directory %s is open to others (%v): %w", dir, fi.Mode(), err)
		}
		log.Warn("the state directory was open to its group or to others, as Kubernetes' fsGroup makes it; it is the daemon's alone again", "dir", dir, "mode", fi.Mode())
	}
	return nil
}

func semaphoreFile(dir string) string { return filepath.Join(dir, "semaphores") }

// removeLeftovers removes the semaphores of daemons that were killed, whatever name their host
// had: all whose names begin with a word of the file. Whatever a file contains, it removes only
// names with the prefix of a daemon's semaphores. Those that begin with kept stay, unless that is empty: this daemon goes on with them.
func (s *state) removeLeftovers(kept string) (removed int) {
	for _, dir := range s.dead {
		names, _ := os.ReadFile(semaphoreFile(dir))
		for name := range strings.FieldsSeq(string(names)) {
			if kept == "" || !strings.HasPrefix(name, kept) {
				removed += ringserver.RemoveSemaphores(name)
			}
		}
	}
	return removed
}

// noteSemaphores records how the names of the semaphores begin, for removeLeftovers.
func (s *state) noteSemaphores(prefix string) error {
	if s.dir == "" {
		return nil
	}
	return os.WriteFile(semaphoreFile(s.dir), []byte(prefix+"\n"), 0o600)
}

func (s *state) close() {
	for _, lock := range s.locks {
		lock.Close()
	}
}
