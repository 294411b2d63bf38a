package usrbio

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

const (
	fsType  = "fuse.hf3fs"
	virtDir = "3fs-virt"

	// envAnyType is upstream's switch that lets any file system with a 3fs-virt
	// in it be a 3FS.
	envAnyType = "HF3FS_USRBIO_DONT_CHECKFS_FOR_MP"
)

// FindMount tells where the 3FS that holds path is mounted. The path must exist;
// symlinks in it are followed. ErrNotMounted means that it is elsewhere.
//
// A directory with 3fs-virt bind-mounted into it counts as a mount point, as in
// containers that see a part of the tree only.
func FindMount(path string) (string, error) {
	real := path
	if !filepath.IsAbs(path) {
		wd, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("usrbio: find mount: %w", err)
		}
		real = wd + "/" + path // not Join: .. after a symlink leads elsewhere
	}
	real, err := filepath.EvalSymlinks(real)
	if err != nil {
		return "", explain("find mount", err)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("usrbio: find mount: %w", err)
	}
	exists := func(p string) bool { _, err := os.Stat(p); return err == nil }
	if mp := findMount(string(table), real, os.Getenv(envAnyType) == "yes", exists); mp != "" {
		return mp, nil
	}
	return "", fmt.Errorf("%w: %s", ErrNotMounted, path)
}

// findMount picks the deepest mount point above the canonical path, or "". Only
// mounts above the path are asked whether they have a 3fs-virt, so that a hung
// mount somewhere else holds up nobody.
func findMount(mountinfo, path string, anyType bool, exists func(string) bool) string {
	best := ""
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		if !ok {
			continue
		}
		fields, tail := strings.Fields(before), strings.Fields(after)
		if len(fields) < 6 || len(tail) < 3 || !anyType && tail[0] != fsType {
			continue
		}
		mp := wire.UnescapeMountinfo(fields[4])
		bound := filepath.Base(mp) == virtDir
		if bound {
			mp = filepath.Dir(mp)
		}
		if len(mp) > len(best) && within(path, mp) && (bound || exists(filepath.Join(mp, virtDir))) {
			best = mp
		}
	}
	return best
}

// within tells whether path is dir or below it.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// IsHF3FS tells whether f is a file or directory of a 3FS, by asking it.
func IsHF3FS(f *os.File) bool {
	magic := 0
	err := control(f, func(fd int) (err error) {
		magic, err = unix.IoctlGetInt(fd, wire.IoctlGetMagic)
		return err
	})
	return err == nil && uint32(magic) == wire.Magic
}

// control runs fn on f's descriptor, which stays open meanwhile, and repeats it
// where a signal got in the way: a FUSE daemon may answer EINTR then.
func control(f *os.File, fn func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = conn.Control(func(fd uintptr) {
		for {
			if inner = fn(int(fd)); inner != unix.EINTR {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return inner
}
