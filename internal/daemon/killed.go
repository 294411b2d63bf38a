package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/host"
)

// A daemon that is killed while it tells the kernel that a name has changed may not end: the kernel waits there for the lock of
// the directory, which a client's call may hold, and that call waits for the daemon. Only the end of the
// connection ends both. The next daemon, which finds the data directory locked, sees to that.

var errServed = errors.New("served already")

const (
	killedTime = 10 * time.Second // for such a daemon to end
	killedTick = 20 * time.Millisecond
)

// openAfterKilled calls open, and once more where a daemon was killed that could not end by itself. mount is the mount
// point, which both have.
func openAfterKilled(data, mount string, me hostID, passed *fdstore.Store, log *slog.Logger, open func(string, hostID, *fdstore.Store, *slog.Logger) (*state, error)) (*state, error) {
	st, err := open(data, me, passed, log)
	if !errors.Is(err, errServed) || me.Boot == "" {
		return st, err
	}
	top := filepath.Join(data, tree.StateName)
	pid, stuck := stuckDaemon(filepath.Join(top, bootsDir, me.Boot))
	if !stuck {
		return nil, err
	}
	point, bad := mountPoint(mount)
	if bad != nil {
		return nil, bad
	}
	mounts, _ := host.Local().Mounts()
	for _, m := range notedBy(filepath.Join(top, hostsDir), pid, me.Boot) {
		if !isAt(mounts, m, point) {
			log.Warn("a daemon that was killed waits for its own mount, which is not at this mount point: serve at the one that it had, or end its connection",
				"pid", pid, "mount", point, "noted", fmt.Sprintf("/sys/fs/fuse/connections/%d", m.minor))
			continue
		}
		log.Warn("a daemon that was killed waits for its own mount: ending its connection", "pid", pid, "connection", m.minor)
		fuseserver.Abort(m.minor)
	}
	for end := time.Now().Add(killedTime); errors.Is(err, errServed) && time.Now().Before(end); {
		time.Sleep(killedTick)
		st, err = open(data, me, passed, log)
	}
	return st, err
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
	var host string
	text, _ := os.ReadFile(lock)
	if n, _ := fmt.Sscanf(string(text), "%d on %s", &pid, &host); n != 2 {
		return 0, false
	}
	if name, err := os.Hostname(); err != nil || name != host {
		return 0, false // its number is that of another process here
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if i := strings.LastIndexByte(string(stat), ')'); i < 0 || !strings.HasPrefix(string(stat[i+1:]), " Z") {
		return 0, false
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	return pid, slices.ContainsFunc(threads, func(file string) bool {
		at, _ := os.ReadFile(file)
		return strings.HasPrefix(string(at), "fuse_reverse_inval")
	})
}
