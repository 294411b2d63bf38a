package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/host"
)

// A daemon that is killed while it tells the kernel that a name has changed may not end: the kernel waits there for the lock of
// the directory, which a client's call may hold, and that call waits for the daemon. Only the end of the
// connection ends both. The next daemon, which finds the data directory locked, sees to that.

var errServed = errors.New("served already")

const (
	killedTime = time.Minute // for such a daemon to end
	killedTick = 20 * time.Millisecond
)

// openAfterKilled calls open, and again for some time where the daemon before has not ended yet, although it was killed, or hands over: a
// thread of it may be in a call that no signal ends, to a disk that hangs. Where it waits for its own mount, that is ended. mount is the mount
// point, which both have.
func openAfterKilled(ctx context.Context, data, mount string, me hostID, passed *fdstore.Store, log *slog.Logger, open func(string, hostID, *fdstore.Store, *slog.Logger) (*state, error)) (*state, error) {
	st, err := open(data, me, passed, log)
	if !errors.Is(err, errServed) || me.Boot == "" {
		return st, err
	}
	top := filepath.Join(data, tree.StateName)
	lock := filepath.Join(top, bootsDir, me.Boot)
	if pid, stuck := stuckDaemon(lock); stuck {
		if err := endOwnMount(top, mount, lock, pid, me.Boot, log); err != nil {
			return nil, err
		}
	}
	return awaitEnd(ctx, passed, lock, log, err, func() (*state, error) { return open(data, me, passed, log) })
}

// awaitEnd calls open until it does not find in use, as it has with the error err, what a daemon has locked that is about to end. lock has
// the number of its process. Another daemon is none of those that end by themselves.
func awaitEnd[T any](ctx context.Context, passed *fdstore.Store, lock string, log *slog.Logger, err error, open func() (T, error)) (T, error) {
	var none T
	pid := holderOf(lock)
	if !passed.Inherits(fdstore.Mount) && !isEnding(pid) {
		return none, err
	}
	log.Warn("waiting for the daemon before, which has not ended yet: it may be in a call to a disk that does not answer", "pid", pid, "at_most", killedTime)
	tick := time.NewTicker(killedTick)
	defer tick.Stop()
	for end := time.Now().Add(killedTime); isInUse(err) && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return none, context.Cause(ctx)
		case <-tick.C:
		}
		var opened T
		if opened, err = open(); err == nil {
			return opened, nil
		}
	}
	return none, err
}

// isInUse reports whether an error says that another daemon has what is to be opened.
func isInUse(err error) bool { return errors.Is(err, errServed) || errors.Is(err, restart.ErrInUse) }

// endOwnMount ends the connection of a mount that a process, which was killed, waits for. lock has its number.
func endOwnMount(top, mount, lock string, pid int, boot string, log *slog.Logger) error {
	point, bad := mountPoint(mount)
	if bad != nil {
		return bad
	}
	mounts, _ := host.Local().Mounts()
	for _, m := range notedBy(filepath.Join(top, hostsDir), pid, boot) {
		if !isAt(mounts, m, point) {
			at, _ := mountOf(mounts, m.minor)
			log.Warn("a daemon that was killed waits for its own mount, which is not at this mount point: serve at the one that it had, or end its connection with umount -f",
				"pid", pid, "mount", point, "noted", at.Point)
			continue
		}
		log.Warn("a daemon that was killed waits for its own mount: ending its connection", "pid", pid, "connection", m.minor)
		fuseserver.AbortIf(m.minor, func() bool { // it may have ended meanwhile, and another mount have its number
			mounts, _ := host.Local().Mounts()
			still, stuck := stuckDaemon(lock)
			return stuck && still == pid && isAt(mounts, m, point)
		})
	}
	return nil
}

// notedBy returns the mounts that a process has noted last in one of the directories of hosts, which should be its own.
func notedBy(hosts string, pid int, boot string) (all []formerMount) {
	entries, _ := os.ReadDir(hosts)
	for _, e := range entries {
		dir := filepath.Join(hosts, e.Name())
		noted := (&state{dead: []string{dir}}).formerMounts(boot)
		holder, err := os.ReadFile(filepath.Join(dir, "lock"))
		if err == nil && len(noted) > 0 && strings.HasPrefix(string(holder), strconv.Itoa(pid)+" on ") {
			all = append(all, noted[len(noted)-1])
		}
	}
	return all
}

// isAt reports whether a noted mount is a 3FS at a mount point. A daemon that is killed before it notes its own leaves an
// earlier one's, whose number another file system behind FUSE may have by now.
func isAt(mounts []host.Mount, m formerMount, point string) bool {
	device := fmt.Sprintf("0:%d", m.minor)
	return slices.ContainsFunc(mounts, func(at host.Mount) bool {
		return at.Device == device && at.Type == host.HF3FSType && at.Point == point
	})
}

// stuckDaemon reports whether the process that a lock's file names was killed, and has a thread that waits for the lock of
// a directory of its mount.
func stuckDaemon(lock string) (pid int, stuck bool) {
	if pid = holderOf(lock); !isZombie(pid) {
		return 0, false
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	return pid, slices.ContainsFunc(threads, func(file string) bool {
		at, _ := os.ReadFile(file)
		return strings.HasPrefix(string(at), "fuse_reverse_inval")
	})
}

// holderOf returns the process that a lock's file names, 0 if it is none that can be seen here.
func holderOf(lock string) (pid int) {
	var host string
	text, _ := os.ReadFile(lock)
	if n, _ := fmt.Sscanf(string(text), "%d on %s", &pid, &host); n != 2 {
		return 0
	}
	if name, err := os.Hostname(); err != nil || name != host {
		return 0 // its number is that of another process here
	}
	return pid
}

// isZombie reports whether the main thread of a process has ended. Others may not have.
func isZombie(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := strings.LastIndexByte(string(stat), ')')
	return pid != 0 && i >= 0 && strings.HasPrefix(string(stat[i+1:]), " Z")
}

// isEnding reports whether a process was killed.
func isEnding(pid int) bool {
	if isZombie(pid) {
		return true
	}
	const kill = 1 << (uint(unix.SIGKILL) - 1)
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		for _, name := range []string{"SigPnd:", "ShdPnd:"} {
			if mask, ok := strings.CutPrefix(line, name); ok {
				if n, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil && n&kill != 0 && pid != 0 {
					return true
				}
			}
		}
	}
	return false
}
