package controldir

import (
	"syscall"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// directory is one of the five directories; all belong to root.
type directory struct {
	name string
	ino  uint64
	perm uint32
}

func (d directory) attr() Attr { return Attr{Ino: d.ino, Mode: syscall.S_IFDIR | d.perm} }

// entries returns the directories that the control directory lists, in that order.
func entries() [4]directory {
	return [4]directory{
		{"rm-rf", wire.InoRmRf, 0o777},
		{"iovs", wire.InoIovs, 0o777},
		{"get-conf", wire.InoGetConf, 0o555},
		{"set-conf", wire.InoSetConf, 0o777},
	}
}

// directoryAt finds a directory by its inode number, the control directory included.
func directoryAt(ino uint64) (directory, bool) {
	if ino == wire.InoVirt {
		return directory{DirName, ino, 0o555}, true
	}
	for _, d := range entries() {
		if d.ino == ino {
			return d, true
		}
	}
	return directory{}, false
}

func isDirectory(ino uint64) bool {
	_, ok := directoryAt(ino)
	return ok
}

// submitLink is a symlink in iovs that leads to a submit semaphore: for each user to
// another one, which only that user can open.
type submitLink struct {
	name     string
	ino      uint64
	priority wire.Priority
}

// submitLinks returns the submit links in the order in which readdir shows them.
func submitLinks() [3]submitLink {
	return [3]submitLink{
		{"submit-ios.ph", wire.InoSubmitHigh, wire.High},
		{"submit-ios", wire.InoSubmitNormal, wire.Normal},
		{"submit-ios.pl", wire.InoSubmitLow, wire.Low},
	}
}

// link is the current state of a symlink.
type link struct {
	ino      uint64
	mode     uint32 // permission bits
	uid, gid uint32
	target   string
}

func (l link) attr() Attr {
	return Attr{Ino: l.ino, Mode: syscall.S_IFLNK | l.mode, UID: l.uid, GID: l.gid, Size: uint64(len(l.target))}
}

// attr returns the attributes of a submit link. They are the same for all users, and
// to ask for them creates no semaphore.
func (s submitLink) attr() Attr {
	return Attr{Ino: s.ino, Mode: syscall.S_IFLNK | 0o666, Size: uint64(SubmitTargetBytes)}
}

func submitLinkAt(ino uint64) (submitLink, bool) {
	for _, s := range submitLinks() {
		if s.ino == ino {
			return s, true
		}
	}
	return submitLink{}, false
}

func registrationLink(r Registration) link {
	invariants.Check(r.Index >= 0 && r.Index < wire.MaxIovs, "registration %s has index %d", r.Name, r.Index)
	return link{ino: wire.InoIovFirst - uint64(r.Index), mode: 0o400, uid: r.UID, gid: r.GID, target: r.Target}
}

// link finds the symlink with an inode number, as c may see it, but for submit links.
func (d *Dir) link(c cred.Caller, ino uint64) (link, syscall.Errno) {
	keys := settings.Keys()
	switch {
	case ino <= wire.InoIovFirst && ino > wire.InoIovFirst-wire.MaxIovs:
		index := int(wire.InoIovFirst - ino)
		r, ok := d.registry.ByIndex(index)
		invariants.Check(!ok || r.Index == index, "registration %s has index %d and is found at %d", r.Name, r.Index, index)
		switch {
		case !ok:
			return link{}, syscall.ENOENT
		case r.UID != c.UID:
			return link{}, syscall.EPERM
		}
		return registrationLink(r), 0
	case ino <= wire.InoGetConfFirst && ino > wire.InoGetConfFirst-uint64(len(keys)):
		key := keys[wire.InoGetConfFirst-ino]
		if settings.PerUser(key) {
			return d.settingLink(c, ino, key, 0o400)
		}
		return d.settingLink(c, ino, key, 0o444)
	case ino <= wire.InoSetConfFirst && ino > wire.InoSetConfFirst-uint64(len(keys)):
		// The reply to a set, which the kernel may have cached: it shows the current value.
		return d.settingLink(c, ino, keys[wire.InoSetConfFirst-ino], 0o400)
	}
	return link{}, syscall.ENOENT
}

// settingLink returns the link of a setting. It belongs to the caller, and its target is
// the caller's value.
func (d *Dir) settingLink(c cred.Caller, ino uint64, key string, mode uint32) (link, syscall.Errno) {
	value, err := d.settings.Get(c.UID, key)
	if err != nil {
		return link{}, errnoOf(err)
	}
	return link{ino: ino, mode: mode, uid: c.UID, gid: c.GID, target: value}, 0
}
