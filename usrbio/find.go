package usrbio

import (
	"context"
	"errors"
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

	// envAnyType is upstream's switch: with "yes", any file system that has a
	// 3fs-virt counts as a 3FS.
	envAnyType = "HF3FS_USRBIO_DONT_CHECKFS_FOR_MP"
)

// FindMount returns the mount point of the 3FS that holds path. The path must
// exist; symlinks in it are followed. ErrNotMounted means that path is not on a
// 3FS.
//
// A directory with 3fs-virt bind-mounted into it counts as a mount point, as in
// containers that see only a part of the tree.
//
// If the mount hangs, FindMount returns ctx.Err(), or ETIMEDOUT after 30 seconds;
// one thread of this process then stays blocked until the daemon answers.
func FindMount(ctx context.Context, path string) (string, error) {
	var mountPoint string // fn may write it until bounded has returned nil
	err := bounded(ctx, func() (err error) {
		mountPoint, err = findMountOf(path)
		return err
	})
	switch {
	case err == nil:
		return mountPoint, nil
	case errors.Is(err, ErrNotMounted):
		return "", err
	}
	return "", explain("find mount", err)
}

func findMountOf(path string) (string, error) {
	real := path
	if !filepath.IsAbs(path) {
		wd, err := os.Getwd()
		if err != nil {
			return "", err
		}
		real = wd + "/" + path // not Join: .. after a symlink leads elsewhere
	}
	real, err := filepath.EvalSymlinks(real)
	if err != nil {
		return "", err
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	exists := func(p string) bool { _, err := os.Stat(p); return err == nil }
	if mp := findMount(string(table), real, os.Getenv(envAnyType) == "yes", exists); mp != "" {
		return mp, nil
	}
	return "", fmt.Errorf("%w: %s", ErrNotMounted, path)
}

// findMount returns the deepest 3FS mount point above the canonical path, or "".
// It looks for 3fs-virt only in mounts above the path, so that a hung mount
// elsewhere does not matter.
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

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// IsHF3FS reports whether f is a file or directory of a 3FS, by an ioctl. Like
// FindMount, it returns an error if ctx ends or the mount hangs.
func IsHF3FS(ctx context.Context, f *os.File) (bool, error) {
	var is bool // fn may write it until bounded has returned nil
	err := bounded(ctx, func() error {
		is = hasMagic(f)
		return nil
	})
	if err != nil {
		return false, explain("query "+f.Name(), err)
	}
	return is, nil
}

func hasMagic(f *os.File) bool {
	magic := 0
	err := control(f, func(fd int) (err error) {
		magic, err = unix.IoctlGetInt(fd, wire.IoctlGetMagic)
		return err
	})
	return err == nil && uint32(magic) == wire.Magic
}

// control runs fn on f's descriptor, which stays open meanwhile. It runs fn again
// after EINTR, with which a FUSE daemon may answer when a signal arrives.
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
