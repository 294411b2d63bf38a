package controldir

import (
	"errors"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// DirName is the name of the control directory in the root of the mount.
const DirName = "3fs-virt"

// Attr is what stat shows of a virtual inode. In addition, nlink is 1, all times are
// wire.VirtualTime and the block size is 0.
type Attr struct {
	Ino      uint64
	Mode     uint32 // with the S_IFMT bits
	UID, GID uint32
	Size     uint64
}

// Entry is a name in a virtual directory.
type Entry struct {
	Name string
	Attr Attr
}

// Options tell which absolute paths are on the mount.
type Options struct {
	// MountPoint is where the mount is, absolute.
	MountPoint string
	// RemountPrefix is a second path under which clients see the mount's root, for
	// instance in containers; empty: there is none. Set it when rm-rf answers EINVAL
	// to paths that are valid where the client runs.
	RemountPrefix string
}

// Dir is the control directory, with everything below it. All methods may be called
// concurrently.
type Dir struct {
	registry Registry
	settings *settings.Settings
	prefixes []string // normal forms of mount point and remount prefix, deepest first
}

// New returns a control directory.
func New(registry Registry, s *settings.Settings, o Options) *Dir {
	d := &Dir{registry: registry, settings: s}
	for _, p := range []string{o.MountPoint, o.RemountPrefix} {
		if strings.HasPrefix(p, "/") {
			d.prefixes = append(d.prefixes, path.Clean(p))
		}
	}
	slices.SortStableFunc(d.prefixes, func(a, b string) int { return len(b) - len(a) })
	return d
}

// Lookup finds a name. It refuses registrations of other users in iovs with EPERM, also
// to root: there is no override.
func (d *Dir) Lookup(c cred.Caller, dir uint64, name string) (Attr, syscall.Errno) {
	switch dir {
	case wire.InoVirt:
		for _, e := range entries() {
			if e.name == name {
				return e.attr(), 0
			}
		}
		return Attr{}, syscall.ENOENT
	case wire.InoRmRf, wire.InoSetConf:
		return Attr{}, syscall.ENOENT
	case wire.InoIovs:
		for _, s := range submitLinks() {
			if s.name == name {
				return s.attr(), 0
			}
		}
		r, errno := d.find(c, name)
		if errno != 0 {
			return Attr{}, errno
		}
		return registrationLink(r).attr(), 0
	case wire.InoGetConf:
		i := slices.Index(settings.Keys(), name)
		if i < 0 {
			return Attr{}, syscall.EINVAL // what upstream says; ENOENT would be cached
		}
		return d.Getattr(c, wire.InoGetConfFirst-uint64(i))
	}
	return Attr{}, d.notADirectory(c, dir)
}

// Getattr returns the attributes of an inode. ENOENT: there is no such inode, or no
// longer. EPERM: it is a registration of another uid.
func (d *Dir) Getattr(c cred.Caller, ino uint64) (Attr, syscall.Errno) {
	if e, ok := directoryAt(ino); ok {
		return e.attr(), 0
	}
	if s, ok := submitLinkAt(ino); ok {
		return s.attr(), 0
	}
	l, errno := d.link(c, ino)
	if errno != 0 {
		return Attr{}, errno
	}
	return l.attr(), 0
}

// Readlink reads a symlink. It checks the caller again, because the kernel may answer
// another user's lookup from its cache.
func (d *Dir) Readlink(c cred.Caller, ino uint64) (string, syscall.Errno) {
	if isDirectory(ino) {
		return "", syscall.EINVAL
	}
	if s, ok := submitLinkAt(ino); ok {
		target, err := d.registry.SubmitLink(c, s.priority)
		invariants.Check(err != nil || len(target) == SubmitTargetBytes, "the target of %s has %d bytes: %s", s.name, len(target), target)
		return target, errnoOf(err)
	}
	l, errno := d.link(c, ino)
	return l.target, errno
}

// Symlink registers shared memory or changes a setting, depending on the directory.
// Either works in read-only mode, because it touches no file. RemoveTarget handles links
// in rm-rf.
func (d *Dir) Symlink(c cred.Caller, dir uint64, name, target string) (a Attr, err syscall.Errno) {
	switch dir {
	case wire.InoIovs:
		r, err := d.registry.Register(c, name, target)
		if err != nil {
			return Attr{}, errnoOf(err)
		}
		return registrationLink(r).attr(), 0
	case wire.InoSetConf:
		if err := d.settings.Set(c.UID, name, target); err != nil {
			return Attr{}, errnoOf(err)
		}
		i := slices.Index(settings.Keys(), name)
		return d.Getattr(c, wire.InoSetConfFirst-uint64(i))
	}
	return Attr{}, d.refuse(c, dir)
}

// Unlink ends a registration, in read-only mode, too, because it touches no file. It
// accepts a ring's own name and the one that upstream's library uses, with the flags in
// decimal (3.4). Nothing else in the control directory can be removed: EPERM.
func (d *Dir) Unlink(c cred.Caller, dir uint64, name string) syscall.Errno {
	if dir != wire.InoIovs {
		return d.refuse(c, dir)
	}
	for _, s := range submitLinks() {
		if s.name == name {
			return syscall.EPERM
		}
	}
	r, errno := d.find(c, name)
	if errno != 0 {
		return errno
	}
	return errnoOf(d.registry.Unregister(c, r.Name))
}

// List returns a directory's entries in the order readdir shows them. In iovs
// these are the submit links and the caller's own registrations.
func (d *Dir) List(c cred.Caller, dir uint64) ([]Entry, syscall.Errno) {
	var es []Entry
	switch dir {
	case wire.InoVirt:
		for _, e := range entries() {
			es = append(es, Entry{e.name, e.attr()})
		}
	case wire.InoIovs:
		for _, s := range submitLinks() {
			es = append(es, Entry{s.name, s.attr()})
		}
		for _, r := range d.registry.List(c.UID) {
			invariants.Check(r.UID == c.UID, "registration %s of uid %d is listed for uid %d", r.Name, r.UID, c.UID)
			es = append(es, Entry{r.Name, registrationLink(r).attr()})
		}
	case wire.InoGetConf:
		for i, key := range settings.Keys() {
			a, errno := d.Getattr(c, wire.InoGetConfFirst-uint64(i))
			if errno != 0 {
				return nil, errno
			}
			es = append(es, Entry{key, a})
		}
	case wire.InoRmRf, wire.InoSetConf:
	default:
		return nil, d.notADirectory(c, dir)
	}
	return es, 0
}

// OpenDir opens a directory; pass every handle to ReleaseDir once. A handle of iovs keeps
// registrations alive (see Registry.DirOpened); those of other directories mean nothing.
func (d *Dir) OpenDir(c cred.Caller, dir uint64) (handle uint64, err syscall.Errno) {
	if !isDirectory(dir) {
		return 0, d.notADirectory(c, dir)
	}
	if dir != wire.InoIovs {
		return 0, 0
	}
	handle, opened := d.registry.DirOpened(c)
	return handle, errnoOf(opened)
}

// ReleaseDir closes a handle of directory dir. Call it when the last descriptor is closed.
func (d *Dir) ReleaseDir(dir, handle uint64) {
	if dir == wire.InoIovs {
		d.registry.DirReleased(handle)
	}
}

// DirsStayOpen goes on with handles of a predecessor, and no other ones of it. Call it before OpenDir.
func (d *Dir) DirsStayOpen(handles []uint64) { d.registry.DirsStayOpen(handles) }

// find returns the registration that c means by name: by its exact name or, if there is
// none, by the decimal spelling of its flags. Lookup has to find the latter as well, or
// the kernel would never send the unlink.
func (d *Dir) find(c cred.Caller, name string) (Registration, syscall.Errno) {
	r, ok := d.registry.Lookup(name)
	if !ok {
		created, alias := wire.DecimalFlagsAlias(name)
		if alias {
			r, ok = d.registry.Lookup(created)
		}
	}
	switch {
	case !ok:
		return Registration{}, syscall.ENOENT
	case r.UID != c.UID:
		return Registration{}, syscall.EPERM
	}
	return r, 0
}

// notADirectory returns the error for using ino as a directory.
func (d *Dir) notADirectory(c cred.Caller, ino uint64) syscall.Errno {
	if _, ok := submitLinkAt(ino); ok {
		return syscall.ENOTDIR
	}
	if _, errno := d.link(c, ino); errno != 0 {
		return errno
	}
	return syscall.ENOTDIR
}

// refuse returns the error for changing what cannot be changed: EPERM in a directory.
func (d *Dir) refuse(c cred.Caller, dir uint64) syscall.Errno {
	if isDirectory(dir) {
		return syscall.EPERM
	}
	return d.notADirectory(c, dir)
}

// errnoOf returns the errno in err, or EIO where there is none.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno == 0 {
		return syscall.EIO
	}
	return errno
}
