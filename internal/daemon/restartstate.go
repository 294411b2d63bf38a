package daemon

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/logpace"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// RestartAuto and RestartOff are values of Config.RestartState; others are directories. Empty is RestartOff.
const (
	RestartAuto = "auto"
	RestartOff  = "off"
)

// restartFormat is the format of the state of restarts as a whole. A daemon throws away what has another one.
const restartFormat = 1

// ErrNoSuccessor is the cause with which the context of Run ends if no other daemon is to follow. It is a context.Canceled, because net/http
// returns the cause in place of that.
var ErrNoSuccessor = fmt.Errorf("no other daemon is expected: %w", context.Canceled)

// mayBeFollowed reports whether a daemon that stops should leave rings and their semaphores although nobody has said that another one
// goes on: a stop may be half of a restart. Where somebody keeps its descriptors, that one knows.
func (c *Config) mayBeFollowed(ctx context.Context) bool {
	return !c.Descriptors.Managed() && !errors.Is(context.Cause(ctx), ErrNoSuccessor)
}

// restartState opens the state in which clients' rings outlive a daemon; nil: they do not. A daemon that was given no directory
// does without where it cannot have one.
func restartState(ctx context.Context, choice, data string, me hostID, passed *fdstore.Store, log *slog.Logger) (*restart.Dir, error) {
	if choice == "" || choice == RestartOff {
		return nil, nil
	}
	path, of, why, err := restartPlace(choice, data, me)
	if err != nil {
		return nil, err
	}
	if why != "" {
		log.Info("clients' rings end with this daemon", "why", why, "cure", "--restart-state DIR, in a tmpfs that is this daemon's alone")
		return nil, nil
	}
	dir, err := restart.Reopen(path, of, passed.Take(stateLock))
	if errors.Is(err, restart.ErrInUse) { // where the data directory cannot be locked, this is all that a predecessor has
		dir, err = awaitEnd(ctx, passed, restart.LockFile(path), log, err, func() (*restart.Dir, error) { return restart.Open(path, of) })
	}
	if err != nil && (choice == RestartAuto || noRoom(err)) {
		log.Warn("clients' rings end with this daemon", "err", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	passed.Pass(stateLock, dir.Lock())
	if why := dir.Discarded(); why != "" {
		log.Warn("what the last daemon has left was thrown away: its clients have to open their rings again", "dir", path, "why", why)
	}
	return dir, nil
}

// stateLock is the name of the descriptor by which a process that executes another program keeps the lock of the state.
const stateLock = "kv3fs-restart-lock"

// restartPlace returns where the state of restarts is to be, and whose; or why there is to be none.
func restartPlace(choice, data string, me hostID) (path string, of restart.Identity, why string, err error) {
	if choice == "" || choice == RestartOff {
		return "", of, "--restart-state is off", nil
	}
	of, name, err := restartIdentity(data, me)
	if err != nil {
		return "", of, "", err
	}
	path = choice
	if choice == RestartAuto {
		if path, why = restart.Place(name); me.Boot == "" {
			why = "the kernel's boot id cannot be read"
		}
		if why != "" {
			return "", of, why, nil
		}
	}
	path, err = filepath.Abs(path)
	return path, of, "", err
}

// restartIdentity returns whose state of restarts a daemon may go on with, and a short name for it.
func restartIdentity(data string, me hostID) (of restart.Identity, name string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(data, &st); err != nil {
		return of, "", fmt.Errorf("data directory %s: %w", data, err)
	}
	place := fmt.Sprintf("inode %d of device %d:%d, host %s", st.Ino, unix.Major(st.Dev), unix.Minor(st.Dev), me.Identity)
	// The root of a new file system has the same inode and device as that of the one before.
	var fs unix.Statfs_t
	if err := unix.Statfs(data, &fs); err != nil {
		return of, "", fmt.Errorf("data directory %s: %w", data, err)
	}
	var born unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, data, 0, unix.STATX_BTIME, &born); err != nil || born.Mask&unix.STATX_BTIME == 0 {
		born.Btime = unix.StatxTimestamp{} // not known there
	}
	of = restart.Identity{
		Boot: me.Boot, Format: restartFormat,
		Data: fmt.Sprintf("%s, made at %d.%09d in file system %08x%08x", place, born.Btime.Sec, born.Btime.Nsec, uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1])),
	}
	const digits = 16
	return of, fmt.Sprintf("%x", sha256.Sum256([]byte(place)))[:digits], nil
}

// noRoom reports whether state could not be written because its tmpfs is full, which users can bring about.
func noRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOMEM)
}

// tellRefused logs for whom there is no room in the state, until the caller ends it.
func tellRefused(dir *restart.Dir, log *slog.Logger) (end func()) {
	if dir == nil {
		return func() {}
	}
	done := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		var pace logpace.Pace
		for {
			select {
			case <-done:
				return
			case uid := <-dir.Refused():
				if more, now := pace.Log("room"); now {
					log.Warn("a user has used up its share of the state of restarts: some of what it has open or registered ends with this daemon", "uid", uid, "more", more)
				}
			}
		}
	})
	return func() {
		close(done)
		telling.Wait()
	}
}

// endRestartState leaves the state to a successor, or removes it.
func endRestartState(dir *restart.Dir, leaves bool) error {
	switch {
	case dir == nil:
		return nil
	case leaves:
		return dir.Close()
	}
	return dir.Clear()
}

const (
	settingsFile    = "settings"
	settingsVersion = 1
)

// keepSettings has what clients have set outlive the daemon, and goes on with what they had set before. What cannot be kept takes
// effect nevertheless.
func keepSettings(dir *restart.Dir, set *settings.Settings, log *slog.Logger) error {
	if dir == nil {
		return nil
	}
	var pace logpace.Pace
	version, text, err := dir.Read(settingsFile)
	switch {
	case err == nil && version != settingsVersion:
		err = fmt.Errorf("version %d, where this kv3fs knows %d: %w", version, settingsVersion, restart.ErrDamaged)
	case err == nil:
		err = set.Restore(text)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err != nil {
		log.Warn("settings that clients had made were given up", "err", err)
	}
	return set.Keep(func(text []byte) error {
		err := dir.Write(settingsFile, settingsVersion, text)
		if err == nil {
			return nil
		}
		err = errors.Join(err, dir.Remove(settingsFile)) // it says what holds no more
		if more, now := pace.Log(settingsFile); now {
			log.Warn("what clients have set ends with this daemon", "err", err, "cure", "make room in the directory of --restart-state", "more", more)
		}
		return nil
	})
}

// outlives returns the value of wire.Daemon.Outlives.
func (c *Config) outlives(kept bool) string {
	switch {
	case c.RestartState == "" || c.RestartState == RestartOff:
		return "--restart-state is off: give it auto, or a directory of a tmpfs"
	case !kept:
		return "there is no place for its state, the log says why: --restart-state DIR, in a tmpfs that is this daemon's alone"
	case c.Mount.State != nil && c.Descriptors.Managed():
		return wire.OutlivesMount
	}
	return wire.OutlivesRings
}

// hasHandles reports whether files of a directory's file system can be opened without a name.
func hasHandles(dir string) bool {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, dir, 0)
	if err != nil {
		return false
	}
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(at)
	fd, err := unix.OpenByHandleAt(at, handle, unix.O_PATH|unix.O_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}
