package hogs

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/hostile"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// openFiles opens as many files as it can, three processes of one user.
func openFiles(h *hog) error {
	allFiles()
	path := filepath.Join(h.Dir, "open")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		return err
	}
	var held []*os.File
	defer func() {
		for _, f := range held {
			f.Close()
		}
	}()
	for range h.many(4000, 40000) {
		f, err := os.Open(path)
		if !h.try(err) || !h.Running() {
			break
		}
		held = append(held, f)
	}
	h.rest(500 * time.Millisecond)
	return nil
}

// nodes has the kernel know as many names as it can: files of its own, which it holds
// without opening them, and names in the control directory.
func nodes(h *hog) error {
	allFiles()
	var held []int
	defer func() {
		for _, fd := range held {
			_ = unix.Close(fd) // it is open
		}
	}()
	dirs := h.many(20, 200)
	for d := range dirs {
		dir := filepath.Join(h.Dir, fmt.Sprintf("d%d", d))
		h.try(os.MkdirAll(dir, 0o700))
		for n := range 100 {
			path := filepath.Join(dir, fmt.Sprintf("n%d", n))
			if _, err := os.Lstat(path); err != nil && !h.try(os.WriteFile(path, nil, 0o600)) {
				break
			}
			if fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW, 0); h.try(err) {
				held = append(held, fd)
			}
			if !h.Running() {
				return nil
			}
		}
		_, err := os.Lstat(hostile.Iovs(h.Mount, wire.NewUUID().String()))
		h.try(err)
	}
	return filepath.WalkDir(h.Dir, func(string, fs.DirEntry, error) error {
		if !h.Running() {
			return filepath.SkipAll
		}
		h.count("done")
		return nil
	})
}

// deep makes directories in directories, and removes them in all ways there are.
func deep(h *hog) error {
	top := filepath.Join(h.Dir, "deep")
	path := top + strings.Repeat("/d", 60)
	h.try(os.MkdirAll(path, 0o700))
	_, err := os.ReadDir(path)
	h.try(err)
	other := filepath.Join(h.Dir, "other")
	h.try(os.Rename(filepath.Join(top, "d", "d"), other))
	h.try(os.Symlink(other, filepath.Join(h.Mount, "3fs-virt", "rm-rf", "x"+wire.NewUUID().String())))
	h.try(os.RemoveAll(top))
	h.try(os.RemoveAll(other))
	h.rest(20 * time.Millisecond)
	return nil
}

// setConf changes its own settings all the time.
func setConf(h *hog) error {
	key := []string{"usr.attr_timeout", "usr.entry_timeout", "usr.negative_timeout", "usr.symlink_timeout"}[rand.IntN(4)]
	h.try(os.Symlink(fmt.Sprint(rand.IntN(30)), filepath.Join(h.Mount, "3fs-virt", "set-conf", key)))
	_, err := os.Readlink(filepath.Join(h.Mount, "3fs-virt", "get-conf", key))
	h.try(err)
	h.rest(time.Millisecond)
	return nil
}

// hungCalls has a hundred threads wait in the part of the data directory that hangs.
func hungCalls(h *hog) error {
	loop(h, h.many(100, 400), func(i int) {
		f, err := os.OpenFile(h.disk(i), os.O_RDWR, 0)
		if !h.try(err) {
			h.rest(10 * time.Millisecond)
			return
		}
		defer f.Close()
		if i%2 == 0 {
			_, err = f.ReadAt(make([]byte, 4096), 0)
		} else {
			_, err = os.Stat(filepath.Join(h.Mount, "disk", fmt.Sprintf("lost-%d", i)))
		}
		h.try(err)
		h.rest(10 * time.Millisecond)
	})
	return nil
}

// hungRemovals removes files that hang, itself and through the control directory.
func hungRemovals(h *hog) error {
	loop(h, 16, func(i int) {
		if i%4 == 0 {
			h.try(os.Symlink(h.disk(i), filepath.Join(h.Mount, "3fs-virt", "rm-rf", "x"+wire.NewUUID().String())))
		} else {
			h.try(os.Remove(h.disk(i)))
		}
		h.rest(10 * time.Millisecond)
	})
	return nil
}
