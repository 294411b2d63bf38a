package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"

	"github.com/kv3fs/kv3fs/internal/host"
)

// Linux 5.6 introduced openat2.
const openat2Major, openat2Minor = 5, 6

func checkKernel(h host.Host) []Finding {
	k, err := h.Kernel()
	if err != nil {
		return []Finding{unknown("kernel", "the kernel's version", err)}
	}
	if !k.AtLeast(openat2Major, openat2Minor) {
		return []Finding{{ID: "kernel", Status: Failure, Found: "Linux " + k.Release, Needed: "Linux 5.6 or later, for openat2", Fix: "upgrade the kernel, best to 6.9 or later"}}
	}
	return []Finding{ok("kernel", "Linux %s", k.Release)}
}

// checkFuse checks whether this user could mount. If something is mounted already,
// problems are only notes, because they affect only the next mount.
func checkFuse(h host.Host, lookPath func(string) (string, error), mounted bool) (all []Finding) {
	worst := Failure
	if mounted {
		worst = Note
	}
	const device = "/dev/fuse"
	f, err := os.OpenFile(h.Path(device), os.O_RDWR, 0)
	switch {
	case err == nil:
		f.Close()
		all = append(all, ok("fuse.device", device+" can be opened"))
	case errors.Is(err, fs.ErrNotExist) && h.InContainer():
		all = append(all, Finding{ID: "fuse.device", Status: worst, Found: "there is no " + device,
			Needed: "the device, to mount in this container; a container that only uses a mount does not need it",
			Fix:    "docker run --device /dev/fuse --cap-add SYS_ADMIN ..."})
	case errors.Is(err, fs.ErrNotExist):
		all = append(all, Finding{ID: "fuse.device", Status: worst, Found: "there is no " + device, Needed: "FUSE in the kernel, to mount", Fix: "modprobe fuse"})
	case errors.Is(err, fs.ErrPermission):
		all = append(all, Finding{ID: "fuse.device", Status: worst, Found: "this user may not open " + device, Needed: "the right to read and write it, to mount",
			Fix: "chmod 666 /dev/fuse   # as root; in a container: --device /dev/fuse"})
	default:
		all = append(all, unknown("fuse.device", "whether "+device+" can be opened", err))
	}
	if h.EUID == 0 {
		return append(all, ok("fuse.helper", "not needed: root mounts without it"))
	}
	path, err := firstOf(lookPath, "fusermount3", "fusermount")
	switch {
	case err == nil:
		all = append(all, ok("fuse.helper", "%s", path))
	case !errors.Is(err, exec.ErrNotFound):
		all = append(all, unknown("fuse.helper", "whether there is a fusermount3", err))
	default:
		all = append(all, Finding{ID: "fuse.helper", Status: worst, Found: "there is no fusermount3", Needed: "fusermount3, to mount without being root", Fix: "apt-get install fuse3"})
	}
	if !h.KnowsUser(h.EUID) {
		// Another source of users, such as LDAP, may know it: fusermount3 asks them all.
		all = append(all, Finding{ID: "fuse.user", Status: min(worst, Warning), Found: fmt.Sprintf("uid %d has no entry in /etc/passwd", h.EUID),
			Needed: "one, for fusermount3 (\"could not determine username\")",
			Fix:    fmt.Sprintf("echo kv3fs:x:%d:%d::/:/usr/sbin/nologin >> /etc/passwd   # as root", h.EUID, os.Getegid())})
	}
	if h.UserAllowOther() {
		return append(all, ok("fuse.allow_other", "user_allow_other is in /etc/fuse.conf"))
	}
	return append(all, Finding{ID: "fuse.allow_other", Status: Note, Found: "user_allow_other is not in /etc/fuse.conf",
		Needed: "that line, if users other than the daemon's are to use the mount; a daemon that runs as root does not need it",
		Fix:    "echo user_allow_other >> /etc/fuse.conf   # as root"})
}

// firstOf returns the path of the first program that lookPath finds.
func firstOf(lookPath func(string) (string, error), names ...string) (path string, err error) {
	for _, name := range names {
		if path, err = lookPath(name); !errors.Is(err, exec.ErrNotFound) {
			break
		}
	}
	return path, err
}
