package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Fresh says who may use a data directory in which nothing is yet. Nothing changes one that
// was in use: later, chmod and chown of the mount's root do that.
type Fresh struct {
	Mode  *uint32 // permission bits; nil: as the directory has them
	Owner *Owner  // nil: likewise
}

// Owner is a user and a group by their numbers.
type Owner struct{ UID, GID uint32 }

// apply gives an empty data directory its mode and owner.
func (f Fresh) apply(log *slog.Logger, dir string) error {
	if f == (Fresh{}) {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open data directory: %w", err)
	}
	defer d.Close()
	if _, err := d.Readdirnames(1); !errors.Is(err, io.EOF) {
		if err != nil {
			return fmt.Errorf("list data directory: %w", err)
		}
		f.differs(log, d)
		return nil
	}
	if f.Owner != nil {
		if err := d.Chown(int(f.Owner.UID), int(f.Owner.GID)); err != nil {
			return fmt.Errorf("give the data directory its owner: %w: only root can, or leave out --owner", err)
		}
	}
	if f.Mode != nil {
		if err := unix.Fchmod(int(d.Fd()), *f.Mode); err != nil {
			return fmt.Errorf("give data directory %s its mode: %w", dir, err)
		}
	}
	return nil
}

// differs says in the log that a directory which was in use keeps another mode or owner than
// that asked for.
func (f Fresh) differs(log *slog.Logger, d *os.File) {
	var st unix.Stat_t
	if unix.Fstat(int(d.Fd()), &st) != nil {
		return
	}
	if f.Mode != nil && *f.Mode != st.Mode&0o7777 || f.Owner != nil && *f.Owner != (Owner{st.Uid, st.Gid}) {
		log.Info("the data directory was in use and keeps its mode and owner: --mode and --owner are for a new one; chmod and chown the mount instead",
			"data", d.Name(), "mode", fmt.Sprintf("%#o", st.Mode&0o7777), "owner", fmt.Sprintf("%d:%d", st.Uid, st.Gid))
	}
}

// adviseRootOnly says in the log of a daemon that runs as root if no other user can create
// anything at the mount's root, nor has anything there to use.
func adviseRootOnly(log *slog.Logger, data, point string) {
	if os.Geteuid() != 0 {
		return
	}
	var st unix.Stat_t
	if unix.Stat(data, &st) != nil || st.Uid != 0 {
		return
	}
	mode := fmt.Sprintf("%#o", st.Mode&0o7777)
	const write, enter = 0o022, 0o011
	if size, err := unix.Getxattr(data, "system.posix_acl_access", nil); err == nil && size > 0 {
		return // the ACL decides, not these bits
	}
	switch {
	case st.Mode&enter == 0:
		log.Warn("only root can use the mount: engines of other users get EACCES; chown it to their user or give it another mode (chmod 1777), or start on a new data directory with --owner or --mode",
			"mount", point, "data", data, "mode", mode)
	case st.Mode&write == 0 && !othersHave(data):
		log.Info("only root can create files at the mount's root, and there is no directory of another user yet: chown the mount to the engines' user, give it another mode (chmod 1777), or make a directory there for each; a new data directory can begin with --owner or --mode",
			"mount", point, "data", data, "mode", mode)
	}
}

// othersHave reports whether one of the first entries of dir is a directory in which others
// than root can create files.
func othersHave(dir string) bool {
	d, err := os.Open(dir)
	if err != nil {
		return true
	}
	defer d.Close()
	const most = 1000
	entries, _ := d.ReadDir(most)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.IsDir() {
			continue
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if ok && (st.Uid != 0 || info.Mode()&0o022 != 0) {
			return true
		}
	}
	return len(entries) == most
}
