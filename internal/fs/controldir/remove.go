package controldir

import (
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// RelPath turns an absolute path as a client sees it into one relative to the mount's
// root; rm-rf and the mount's mv: links use it. It cleans the path lexically and
// follows no symlink.
//
// EINVAL: the path is relative, outside the mount or the mount's root itself. EPERM: it
// leads into 3fs-virt, where nothing can be moved or deleted.
func (d *Dir) RelPath(abs string) (rel string, err syscall.Errno) {
	rel, ok := d.under(abs)
	switch {
	case !ok || rel == "":
		return "", syscall.EINVAL
	case rel == DirName || strings.HasPrefix(rel, DirName+"/"):
		return "", syscall.EPERM
	}
	return rel, 0
}

// under cuts off the deepest prefix of the mount that contains abs; rel is "" for the
// prefix itself.
func (d *Dir) under(abs string) (rel string, ok bool) {
	if !strings.HasPrefix(abs, "/") {
		return "", false
	}
	abs = path.Clean(abs)
	for _, p := range d.prefixes {
		if abs == p {
			return "", true
		}
		if rel, ok := strings.CutPrefix(abs, strings.TrimSuffix(p, "/")+"/"); ok {
			return rel, true
		}
	}
	return "", false
}

// RemoveTarget returns the path that a symlink to target in rm-rf orders to be removed,
// relative to the mount's root; the FUSE server removes it. Errors: EROFS in read-only
// mode, EINVAL where an ln was mistyped, and those of RelPath.
func (d *Dir) RemoveTarget(c cred.Caller, target string) (rel string, err syscall.Errno) {
	if d.settings.Readonly(c.UID) {
		return "", syscall.EROFS
	}
	rel, errno := d.RelPath(target)
	if errno != 0 {
		return "", errno
	}
	if d.settings.CheckRmRf() && !d.spelledOut(arguments(c.PID)) {
		return "", syscall.EINVAL
	}
	return rel, 0
}

// spelledOut reports whether an ln(1) names everything by absolute paths on the mount.
// It guards against a mistake in an ln typed inside rm-rf, where every operand but the
// last is deleted. The operand right after an option is exempt, as in upstream: most
// often it is the target, which was checked already. Other programs are not checked.
func (d *Dir) spelledOut(argv []string) bool {
	if len(argv) == 0 {
		return true
	}
	switch argv[0] {
	case "ln", "/usr/bin/ln", "/bin/ln":
	default:
		return true
	}
	afterOption := false
	for _, arg := range argv[1:] {
		option := strings.HasPrefix(arg, "-")
		if !option && !afterOption {
			if _, ok := d.under(arg); !ok {
				return false
			}
		}
		afterOption = option
	}
	return true
}

// arguments returns the command line of a process by the id of any of its threads. It
// returns none if the process is in another PID namespace or has exited.
func arguments(pid uint32) []string {
	if pid == 0 {
		return nil
	}
	f, err := os.Open("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/cmdline")
	if err != nil {
		return nil
	}
	defer f.Close()
	const most = 4 << 20 // beyond what execve takes by default
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}
