package volumes

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

const (
	// A sub-directory that is made belongs to the pod's fsGroup, which files in it inherit, and to nobody else.
	modeOfGroup = 0o2770
	// Without an fsGroup, its users are not known: it is like /tmp, for whoever has it as a volume.
	modeOfAll = 0o1777
)

// prepare makes of the mount what a volume needs in it: its sub-directory, and the directories in there that others are bound to. It
// reports whether the sub-directory is a new one.
func (v *Volumes) prepare(r Record) (made bool, err error) {
	root, err := unix.Open(v.c.Mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, v.notThere(err)
	}
	defer unix.Close(root)
	if made, err = makeSub(root, r); err != nil {
		return made, v.spoilt(r, err)
	}
	sub, err := openBeneath(root, r.SubDirectory, unix.O_PATH)
	if err != nil {
		return made, v.spoilt(r, err)
	}
	defer unix.Close(sub)
	var needed []string
	if r.SubDirectory != "." {
		needed = append(needed, host.VirtDir)
	}
	if r.Pages != "" {
		needed = append(needed, PagesDir)
	}
	for _, name := range needed {
		err := unix.Mkdirat(sub, name, 0o755)
		if errors.Is(err, unix.EROFS) {
			_, err = stat(sub, name)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return made, failure(Refused, "directory %s in %s, which something is to be mounted at: %w: make it by hand", name, path.Join(v.c.Mount, r.SubDirectory), err)
		}
	}
	return made, nil
}

func stat(dir int, name string) (st unix.Stat_t, err error) {
	return st, unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
}

// spoilt says why a sub-directory cannot be used.
func (v *Volumes) spoilt(r Record, err error) error {
	full := path.Join(v.c.Mount, r.SubDirectory)
	var known *Failure
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, unix.ELOOP):
		return failure(Refused, "subDirectory %s: there is a symbolic link in it, which may lead out of it: name the directory itself", full)
	case errors.Is(err, unix.EXDEV):
		return failure(Refused, "subDirectory %s leads out of the mount: name a directory in it", full)
	case errors.Is(err, unix.ENOTDIR):
		return failure(Refused, "subDirectory %s: there is something else than a directory in it: remove it, or name another", full)
	case errors.Is(err, unix.ENOTCONN):
		return v.notThere(err)
	}
	return failure(Refused, "subDirectory %s: %w", full, err)
}

// makeSub makes the sub-directory of a volume if it is not there, with its parents. Whose that of an adopted volume was is not known.
func makeSub(root int, r Record) (made bool, err error) {
	if r.SubDirectory == "." {
		return false, nil
	}
	dir, err := unix.Dup(root)
	if err != nil {
		return false, err
	}
	defer func() { unix.Close(dir) }()
	parts := strings.Split(r.SubDirectory, "/")
	for i, name := range parts {
		next, err := openBeneath(dir, name, unix.O_PATH)
		switch {
		case errors.Is(err, unix.ENOENT) && r.ReadOnly:
			return made, failure(Missing, "subDirectory %q is not there, and a read-only volume makes none: publish it writable first, or make it", r.SubDirectory)
		case errors.Is(err, unix.ENOENT) && r.Adopted:
			return made, failure(Missing, "subDirectory %q is not there any more, and whose it was is not known, because the volume's record was lost: delete the pod, so that another one gets the volume", r.SubDirectory)
		case errors.Is(err, unix.ENOENT):
			if i < len(parts)-1 {
				err = unix.Mkdirat(dir, name, 0o755)
			} else {
				err = makeOwned(dir, name, r.Group)
				made = err == nil
			}
			if err == nil || errors.Is(err, unix.EEXIST) {
				next, err = openBeneath(dir, name, unix.O_PATH)
			}
		}
		if err != nil {
			return made, err
		}
		unix.Close(dir)
		dir = next
	}
	return made, nil
}

// makeOwned makes a directory with its group and mode at once: nobody finds a half-made one, after a crash neither.
func makeOwned(dir int, name, group string) error {
	draft := ".kv3fs-csi-" + rand.Text()
	if err := unix.Mkdirat(dir, draft, 0o700); err != nil {
		return err
	}
	err := own(dir, draft, group)
	if err == nil {
		err = unix.Renameat2(dir, draft, dir, name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(dir, draft, unix.AT_REMOVEDIR))
	}
	return nil
}

func own(dir int, name, group string) error {
	fd, err := openBeneath(dir, name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	if group == "" {
		return unix.Fchmod(fd, modeOfAll)
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil {
		return fmt.Errorf("group %q: %w", group, err)
	}
	return errors.Join(unix.Fchown(fd, -1, int(gid)), unix.Fchmod(fd, modeOfGroup))
}
