package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// operateFlags select the running daemon that a command is for.
type operateFlags struct {
	Data    givenPath     `placeholder:"DIR" help:"The daemon's data directory. Default: found by the paths that are given, by the current directory, or by the only mount of this host."`
	Mount   givenPath     `placeholder:"DIR" help:"The daemon's mount, in place of --data."`
	Timeout time.Duration `default:"30s" range:"1s..24h" help:"How long to wait for the daemon."`
	JSON    bool          `name:"json" help:"Print JSON instead of a table."`
}

// connectTo is connect for a path that may be left out: then it is the data directory's.
func (f *operateFlags) connectTo(ctx context.Context, path string) (client *admin.Client, at string, err error) {
	var paths []string
	if path != "" {
		paths = append(paths, path)
	}
	client, below, err := f.connect(ctx, paths...)
	if err != nil {
		return nil, "", err
	}
	return client, append(below, ".")[0], nil
}

// connect returns the client of the daemon and the paths as it knows them, below its data
// directory. They are given below the mount or the data directory.
func (f *operateFlags) connect(ctx context.Context, paths ...string) (*admin.Client, []string, error) {
	return f.connectIn(ctx, socketDirs, paths...)
}

// connectIn is connect for a daemon with its socket in one of the directories that in returns of a data directory.
func (f *operateFlags) connectIn(ctx context.Context, in func(data string) ([]string, error), paths ...string) (*admin.Client, []string, error) {
	data, err := f.data()
	if err != nil {
		return nil, nil, err
	}
	if data == "" && len(paths) == 0 {
		if data, err = anyData(); err != nil {
			return nil, nil, err
		}
	}
	below := make([]string, 0, len(paths))
	for _, p := range paths {
		switch {
		case filepath.IsAbs(p):
		case f.Data != "":
			below = append(below, filepath.Clean(p))
			continue
		case f.Mount != "":
			p = filepath.Join(string(f.Mount), p)
		}
		its, at, err := locate(p)
		switch {
		case err != nil:
			return nil, nil, err
		case data == "":
			data = its
		case !sameDir(data, its):
			return nil, nil, fmt.Errorf("%s is in %s, not in %s: give paths of one daemon", printable(p), printable(its), printable(data))
		}
		below = append(below, at)
	}
	dirs, err := in(data)
	if err != nil {
		return nil, nil, err
	}
	client, err := admin.Dial(ctx, dirs, f.Timeout)
	if errors.Is(err, admin.ErrNoDaemon) {
		err = fmt.Errorf("no daemon of this host serves %s: start kv3fs serve, or run this on the host where it runs", printable(data))
	}
	return client, below, err
}

// data returns the data directory that the flags name, "" if they name none.
func (f *operateFlags) data() (string, error) {
	switch {
	case f.Data != "":
		if !hasState(string(f.Data)) {
			return "", bad("data", "%s is no data directory: there is no %s in it", printable(string(f.Data)), kv3fs.StateDir)
		}
		return string(f.Data), nil
	case f.Mount != "":
		data, _, err := locate(string(f.Mount))
		return data, err
	}
	return "", nil
}

// anyData returns the data directory to which the current directory belongs, or that of the only
// mount.
func anyData() (string, error) {
	if data, _, err := locate("."); err == nil {
		return data, nil
	}
	mounts, err := host.Local().Mounts()
	if err != nil {
		return "", err
	}
	switch points := host.HF3FS(mounts); len(points) {
	case 0:
		return "", errors.New("there is no mount of kv3fs here: give --data or --mount")
	case 1:
		return dataOf(points[0])
	default:
		return "", fmt.Errorf("there are several mounts here: choose one with --mount, such as %s", printable(points[0]))
	}
}

// dataOf asks the daemon of a mount for its data directory.
func dataOf(mount string) (string, error) {
	value := make([]byte, 64<<10)
	n, err := unix.Getxattr(mount, wire.DaemonXattr, value)
	if err != nil {
		return "", fmt.Errorf("%s is no mount of kv3fs that answers: %w: give --data", printable(mount), err)
	}
	var d wire.Daemon
	if err := json.Unmarshal(value[:n], &d); err != nil {
		return "", fmt.Errorf("the daemon of %s: %w", printable(mount), err)
	}
	if !hasState(d.Data) {
		return "", fmt.Errorf("the daemon of %s keeps its data in %s, which is not there under this name here, perhaps because it runs in a container: run this where the daemon runs, or give --data",
			printable(mount), printable(d.Data))
	}
	return d.Data, nil
}

// locate returns the data directory of the daemon that serves a path, and the path below it. The
// path may be a pattern, and need not be there.
func locate(p string) (data, at string, err error) {
	full, err := filepath.Abs(p)
	if err != nil {
		return "", "", err
	}
	full = resolve(full)
	mounts, err := host.Local().Mounts()
	if err != nil {
		return "", "", err
	}
	var notOurs error
	if m, ok := host.Holding(mounts, full); ok && m.Type == host.HF3FSType {
		data, notOurs = dataOf(whole(mounts, m).Point)
		if notOurs == nil {
			rel, err := filepath.Rel(m.Point, full)
			return data, filepath.Join(".", m.Root, rel), err
		}
		// It may be another 3FS, in which kv3fs keep keeps a directory.
	}
	for dir := full; ; dir = filepath.Dir(dir) {
		if hasState(dir) {
			rel, err := filepath.Rel(dir, full)
			return dir, rel, err
		}
		switch {
		case dir != "/":
			continue
		case notOurs != nil:
			return "", "", notOurs
		}
		if is, err := filepath.EvalSymlinks(full); err == nil && is != full {
			return locate(is) // a symbolic link outside that leads there
		}
		return "", "", fmt.Errorf("%s is neither below a mount of kv3fs nor below a data directory: give another path, or --data or --mount", printable(p))
	}
}

// whole returns the mount of all of the file system of which m may be a part, bound elsewhere: its
// root alone says whose it is. Without one, that is m.
func whole(mounts []host.Mount, m host.Mount) host.Mount {
	for _, other := range mounts {
		if m.Root != "/" && other.Root == "/" && other.Device == m.Device && other.Type == m.Type {
			return other
		}
	}
	return m
}

// resolve replaces the symbolic links in as much of a path as there is, up to the first wildcard,
// but not one at the end.
func resolve(full string) string {
	dir, rest := filepath.Dir(full), filepath.Base(full)
	if i := strings.IndexAny(dir, `*?[\`); i >= 0 {
		if _, err := os.Lstat(dir); err != nil { // it is a pattern, not a name
			cut := strings.LastIndexByte(dir[:i], '/')
			dir, rest = dir[:max(cut, 1)], strings.TrimPrefix(full[max(cut, 0):], "/")
		}
	}
	for {
		if is, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(is, rest)
		}
		if dir == "/" {
			return full
		}
		dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest)
	}
}

func sameDir(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// hasState reports whether a directory is one that kv3fs serve or kv3fs keep has worked in.
func hasState(dir string) bool {
	return slices.ContainsFunc([]string{kv3fs.StateDir, kv3fs.KeepDir}, func(name string) bool {
		fi, err := os.Lstat(filepath.Join(dir, name))
		return err == nil && fi.IsDir()
	})
}

// socketDirs returns the directories in which a daemon or keeper of a data directory may have its
// socket: each host has one of its own.
func socketDirs(data string) (dirs []string, err error) {
	// A daemon without a capacity may serve what kv3fs keep keeps: that is asked first.
	for _, state := range []string{kv3fs.KeepDir, kv3fs.StateDir} {
		top := filepath.Join(data, state, "hosts")
		entries, err := os.ReadDir(top)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("the daemon's state: %w: run this as root or as the daemon's user", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				dirs = append(dirs, filepath.Join(top, e.Name()))
			}
		}
	}
	return dirs, nil
}

// failed returns the error of a command. If a signal interrupted it, it also prints the
// JSON of what was complete.
func (f *operateFlags) failed(ctx context.Context, out io.Writer, command string, report any, err error) error {
	if !f.JSON || ctx.Err() == nil {
		return err
	}
	return cmp.Or(err, writeJSON(out, command, true, report))
}
