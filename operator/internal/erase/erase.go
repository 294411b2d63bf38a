// Package erase removes the files of a cache that is deleted with its data.
package erase

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// state is kv3fs's directory in each data directory, by which one is known.
const state = ".kv3fs"

// Directory removes everything in a directory that a kv3fs daemon has had its files in. What never was one is left as it is, and one that
// others have mounted something in, or that a daemon serves, is refused. It can be repeated after a failure: what the directory is known by goes last.
func Directory(dir string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the data directory: %w", err)
	}
	defer root.Close()
	if fi, err := root.Lstat(state); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for %s in %s: %w", state, dir, err)
	} else if !fi.IsDir() {
		return fmt.Errorf("%s/%s is no directory, so this is no data directory of kv3fs: nothing was removed", dir, state)
	}
	locks, err := lock(root)
	defer func() {
		for _, l := range locks {
			l.Close()
		}
	}()
	if err != nil {
		return fmt.Errorf("lock the data directory %s: %w; nothing was removed", dir, err)
	}
	if point, err := mountedIn(dir); err != nil {
		return err
	} else if point != "" {
		return fmt.Errorf("%s is a mount in the data directory %s: unmount it on the node; nothing was removed", point, dir)
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fmt.Errorf("read the data directory: %w", err)
	}
	for _, e := range entries {
		if e.Name() != state {
			if err := root.RemoveAll(e.Name()); err != nil {
				return fmt.Errorf("remove %s: %w", filepath.Join(dir, e.Name()), err)
			}
		}
	}
	if err := root.RemoveAll(state); err != nil {
		return fmt.Errorf("remove %s: %w", filepath.Join(dir, state), err)
	}
	return nil
}

// lock takes the locks that daemons have while they serve the directory, so that none does.
func lock(root *os.Root) (locks []*os.File, err error) {
	var names []string
	for _, pattern := range []string{"boots/*", "hosts/*/lock"} {
		found, err := fs.Glob(root.FS(), state+"/"+pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	for _, name := range names {
		file, err := root.OpenFile(name, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return locks, err
		}
		locks = append(locks, file)
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
			holder := make([]byte, 300)
			n, _ := file.Read(holder)
			return locks, fmt.Errorf("%s is locked by a daemon that serves it, process %s: stop that one", name, strings.TrimSpace(string(holder[:n])))
		} else if err != nil {
			return locks, fmt.Errorf("%s: %w", name, err)
		}
	}
	return locks, nil
}

// mountedIn returns a mount point below a directory.
func mountedIn(dir string) (string, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("resolve the data directory: %w", err)
	}
	if real, err = filepath.Abs(real); err != nil {
		return "", fmt.Errorf("resolve the data directory: %w", err)
	}
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("look for mounts: %w", err)
	}
	defer file.Close()
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if point := unescape.Replace(fields[4]); strings.HasPrefix(point, strings.TrimSuffix(real, "/")+"/") {
			return point, nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("look for mounts: %w", err)
	}
	return "", nil
}
