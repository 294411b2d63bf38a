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
// below one. Mounts of other users that do not answer are apart: anybody can make one. It returns in bounded time, also where a mount hangs,
// and asks only mounts that may be meant.
func runningDaemons(ctx context.Context, at string) (all, strange []runningDaemon, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	h := host.Local()
	mounts, err := h.Mounts()
	if err != nil {
		return nil, nil, err
	}
	full, points := "", host.HF3FS(mounts)
	if at != "" {
		if full, err = filepath.Abs(at); err != nil {
			return nil, nil, err
		}
	}
	below := "" // the mount that a path is on, by its name alone: it may hang
	if m, ok := host.Holding(mounts, full); at != "" && ok && m.Type == host.HF3FSType {
		below = whole(mounts, m).Point
		points = slices.DeleteFunc(points, func(p string) bool { return p != below })
	}
	for _, m := range doctor.Mounts(ctx, doctor.Options{Host: h, Probe: []string{self, "probe"}}, points) {
		is, ok := host.At(mounts, m.Point)
		if !ok {
			is, _ = host.At(mounts, filepath.Join(m.Point, host.VirtDir)) // a container's part of one
		}
		switch {
		case m.Daemon != nil:
			all = append(all, runningDaemon{m.Point, m.Daemon.Data, m.Daemon.PID, m.Err})
		case m.Err != nil && below == "" && !trusted(is):
			strange = append(strange, runningDaemon{mount: m.Point, err: m.Err})
		case m.Err != nil:
			all = append(all, runningDaemon{mount: m.Point, err: m.Err})
		}
	}
	switch {
	case at == "" && len(all) == 0:
		return nil, strange, fmt.Errorf("%w on this host", errNothingRuns)
	case at == "":
		return all, strange, ctx.Err()
	case below != "":
		if i := slices.IndexFunc(all, func(d runningDaemon) bool { return d.mount == below }); i >= 0 {
			return all[i : i+1], nil, nil
		}
		return nil, nil, fmt.Errorf("%s is on a 3FS that is none of kv3fs", printable(at))
	}
	for dir := resolve(full); ; dir = filepath.Dir(dir) {
		if i := slices.IndexFunc(all, func(d runningDaemon) bool { return d.data != "" && sameDir(d.data, dir) }); i >= 0 {
			return all[i : i+1], nil, nil
		}
		if hasState(dir) { // its mount may be in another mount namespace
			return []runningDaemon{{data: dir}}, nil, nil
		}
		if dir == "/" {
			return nil, nil, fmt.Errorf("%s is neither a mount of kv3fs nor a data directory: %w for it", printable(at), errNothingRuns)
		}
	}
}

// trusted reports whether a mount is root's or the caller's.
func trusted(m host.Mount) bool {
	return m.HasOption("user_id=0") || m.HasOption(fmt.Sprint("user_id=", os.Geteuid()))
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
