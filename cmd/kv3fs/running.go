package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/advise/doctor"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
)

// runningDaemon is a daemon of this host.
type runningDaemon struct {
	mount string // "": not known
	data  string
	pid   int
	err   error // it does not answer
}

// errNothingRuns says that no daemon runs on this host.
var errNothingRuns = errors.New("no daemon of kv3fs runs")

// runningDaemons returns the daemons of this host, by their mounts: all, or the one of a path, which is a mount, a data directory, or
// below one. It returns in bounded time, also where a mount hangs.
func runningDaemons(ctx context.Context, at string) ([]runningDaemon, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h := host.Local()
	mounts, err := doctor.Mounts(ctx, doctor.Options{Host: h, Probe: []string{self, "probe"}})
	if err != nil {
		return nil, err
	}
	var all []runningDaemon
	for _, m := range mounts {
		switch {
		case m.Daemon != nil:
			all = append(all, runningDaemon{m.Point, m.Daemon.Data, m.Daemon.PID, m.Err})
		case m.Err != nil:
			all = append(all, runningDaemon{mount: m.Point, err: m.Err})
		}
	}
	if at == "" {
		if len(all) == 0 {
			return nil, fmt.Errorf("%w on this host", errNothingRuns)
		}
		return all, ctx.Err()
	}
	full, err := filepath.Abs(at)
	if err != nil {
		return nil, err
	}
	known, err := h.Mounts()
	if err != nil {
		return nil, err
	}
	if m, ok := host.Holding(known, full); ok && m.Type == host.HF3FSType { // by its name alone: it may hang
		if i := slices.IndexFunc(all, func(d runningDaemon) bool { return d.mount == whole(known, m).Point }); i >= 0 {
			return all[i : i+1], nil
		}
		return nil, fmt.Errorf("%s is on a 3FS that is none of kv3fs", printable(at))
	}
	for dir := resolve(full); ; dir = filepath.Dir(dir) {
		if i := slices.IndexFunc(all, func(d runningDaemon) bool { return d.data != "" && sameDir(d.data, dir) }); i >= 0 {
			return all[i : i+1], nil
		}
		if hasState(dir) { // its mount may be in another mount namespace
			return []runningDaemon{{data: dir}}, nil
		}
		if dir == "/" {
			return nil, fmt.Errorf("%s is neither a mount of kv3fs nor a data directory: %w for it", printable(at), errNothingRuns)
		}
	}
}

// dial returns the client of a daemon.
func (d runningDaemon) dial(ctx context.Context, patience time.Duration) (*admin.Client, error) {
	if d.err != nil {
		return nil, fmt.Errorf("the daemon of %s does not answer: %w: look at its log, or run kv3fs doctor", printable(d.mount), d.err)
	}
	if !hasState(d.data) {
		return nil, fmt.Errorf("the daemon of %s keeps its data in %s, which is not there under this name here, perhaps because it runs in a container: run this there", printable(d.mount), printable(d.data))
	}
	dirs, err := daemonDirs(d.data)
	if err != nil {
		return nil, err
	}
	client, err := admin.Dial(ctx, dirs, patience)
	switch {
	case errors.Is(err, admin.ErrNoDaemon) && d.mount == "":
		return nil, fmt.Errorf("%w for %s", errNothingRuns, printable(d.data))
	case errors.Is(err, admin.ErrNoDaemon):
		return nil, fmt.Errorf("the daemon of %s has no socket to be asked at, perhaps because it is read-only: ask at its --admin-listen, such as curl http://127.0.0.1:9180/api/v1/status", printable(d.mount))
	}
	return client, err
}

// daemonDirs returns the directories in which a daemon may have its socket. What keeps a directory, kv3fs keep or a daemon in its turn, has
// another one, which shows nothing and has no configuration.
func daemonDirs(data string) ([]string, error) {
	dirs, err := socketDirs(data)
	kept := filepath.Join(data, kv3fs.KeepDir) + "/"
	return slices.DeleteFunc(dirs, func(dir string) bool { return strings.HasPrefix(dir, kept) }), err
}
