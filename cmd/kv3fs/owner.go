package main

import (
	"errors"
	"os/user"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/daemon"
)

// freshFlags say who may use a data directory in which nothing is yet.
type freshFlags struct {
	Mode  string `placeholder:"MODE" help:"Permission bits of a new, empty data directory, in octal: 1777 lets every user create files at the mount's root, as in /tmp. A directory that was in use keeps its own: chmod the mount."`
	Owner string `placeholder:"USER[:GROUP]" help:"Owner of a new, empty data directory, e.g. the engines' user: names or numbers. A directory that was in use keeps its own: chown the mount."`
}

// fresh returns the flags as the daemon takes them.
func (f freshFlags) fresh() (daemon.Fresh, error) {
	mode, errMode := f.mode()
	owner, errOwner := f.owner()
	return daemon.Fresh{Mode: mode, Owner: owner}, errors.Join(errMode, errOwner)
}

func (f freshFlags) mode() (*uint32, error) {
	if f.Mode == "" {
		return nil, nil
	}
	const mostBits = 12
	n, err := strconv.ParseUint(f.Mode, 8, mostBits)
	if err != nil {
		return nil, bad("mode", "%q is no mode in octal; use, say, 0755 or 1777", f.Mode)
	}
	mode := uint32(n)
	return &mode, nil
}

func (f freshFlags) owner() (*daemon.Owner, error) {
	if f.Owner == "" {
		return nil, nil
	}
	name, group, hasGroup := strings.Cut(f.Owner, ":")
	var o daemon.Owner
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	switch {
	case err == nil:
		uid, _ := id(u.Uid)
		gid, _ := id(u.Gid)
		o = daemon.Owner{UID: uid, GID: gid}
	default:
		uid, ok := id(name)
		if !ok {
			return nil, bad("owner", "%q: this host has no user %q", f.Owner, name)
		}
		if !hasGroup {
			return nil, bad("owner", "%q: this host has no such user, so add a group: %s:%s", f.Owner, name, name)
		}
		o.UID = uid
	}
	if !hasGroup {
		return &o, nil
	}
	if g, err := user.LookupGroup(group); err == nil {
		group = g.Gid
	}
	gid, ok := id(group)
	if !ok {
		return nil, bad("owner", "%q: this host has no group %q", f.Owner, group)
	}
	o.GID = gid
	return &o, nil
}

// id parses the number of a user or a group. The largest means no user to the kernel.
func id(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}
