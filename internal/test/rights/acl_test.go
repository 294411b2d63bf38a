package rights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// Tags of ACL entries, in the order in which the kernel wants them.
const (
	tagOwner      = 0x01
	tagUser       = 0x02
	tagOwnerGroup = 0x04
	tagGroup      = 0x08
	tagMask       = 0x10
	tagOther      = 0x20
)

// entry is an entry of an ACL; id matters for tagUser and tagGroup only.
type entry struct {
	tag, perm uint16
	id        uint32
}

// aclBytes returns an ACL in the format of the extended attributes (version 2).
func aclBytes(entries ...entry) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		if e.tag != tagUser && e.tag != tagGroup {
			e.id = 0xffffffff
		}
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// cast are the users of a test, each with another relation to a file.
type cast struct {
	owner, member, named, namedMember, other hostile.User
	group, namedGroup                        uint32
}

func newCast(t *testing.T) cast {
	c := cast{owner: hostile.NewUser(t), named: hostile.NewUser(t), other: hostile.NewUser(t)}
	// Groups that nobody has as the first one.
	c.group, c.namedGroup = hostile.NewUser(t).ID, hostile.NewUser(t).ID
	c.member = hostile.NewUser(t)
	c.member.Groups = []uint32{c.group}
	c.namedMember = hostile.NewUser(t)
	c.namedMember.Groups = []uint32{4, c.namedGroup}
	return c
}

func (c cast) users() map[string]hostile.User {
	return map[string]hostile.User{
		"owner": c.owner, "member": c.member, "named": c.named, "named member": c.namedMember, "other": c.other, "root": root,
	}
}

// acls returns ACLs by name. Each takes the rights of owner and others from a mode; nil is
// no ACL.
func (c cast) acls(mode int64) map[string][]byte {
	owner, group, other := uint16(mode>>6&7), uint16(mode>>3&7), uint16(mode&7)
	acl := func(g, mask uint16, named ...entry) []byte {
		all := []entry{{tag: tagOwner, perm: owner}}
		for _, n := range named {
			if n.tag == tagUser {
				all = append(all, n)
			}
		}
		all = append(all, entry{tag: tagOwnerGroup, perm: g})
		for _, n := range named {
			if n.tag == tagGroup {
				all = append(all, n)
			}
		}
		return aclBytes(append(all, entry{tag: tagMask, perm: mask}, entry{tag: tagOther, perm: other})...)
	}
	user := func(perm uint16) entry { return entry{tagUser, perm, c.named.ID} }
	members := func(perm uint16) entry { return entry{tagGroup, perm, c.namedGroup} }
	return map[string][]byte{
		"none":                     nil,
		"group: nothing":           acl(0, group),
		"named user: all":          acl(group, 7, user(7)),
		"named user: nothing":      acl(group, 7, user(0)),
		"named user: all, masked":  acl(group, 0, user(7)),
		"named user: read, masked": acl(6, 4, user(6)),
		"named group: all":         acl(0, 7, members(7)),
		"named group: read":        acl(group, 7, members(4)),
		"named group: nothing":     acl(7, 7, members(0)),
		"both":                     acl(4, 6, user(2), members(5)),
	}
}

// needACLs skips a test where dir's file system keeps no ACLs.
func needACLs(t *testing.T, dir string) {
	t.Helper()
	if _, err := unix.Getxattr(dir, accessACL, nil); err != nil && err != unix.ENODATA {
		t.Skipf("NOT TESTED: %s has no ACLs: %v", dir, err)
	}
}

// makeEntry makes a file, or a directory with the file "in" in it, with that owner, mode
// and ACL.
func makeEntry(t *testing.T, path string, c cast, dir bool, mode int64, acl []byte) {
	t.Helper()
	var err error
	if dir {
		err = errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "in"), []byte("content"), 0o666), os.Chmod(filepath.Join(path, "in"), 0o666))
	} else {
		err = os.WriteFile(path, []byte("content"), 0o600)
	}
	err = errors.Join(err, os.Chown(path, int(c.owner.ID), int(c.group)), unix.Chmod(path, uint32(mode)))
	if acl != nil {
		err = errors.Join(err, unix.Setxattr(path, accessACL, acl, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Whatever the mode and the ACL, and whoever tries it: through the mount and through rings
// the outcome is the same as directly.
func TestMountAgainstDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of steps")
	}
	for _, route := range routes {
		modes := []int64{0o640, 0o606, 0o477}
		if route.flags == nil {
			modes = []int64{0o000, 0o600, 0o660, 0o640, 0o644, 0o606, 0o770, 0o477}
		}
		t.Run(route.name, func(t *testing.T) { mountAgainstDirectory(t, modes, route.flags) })
	}
}

func mountAgainstDirectory(t *testing.T, modes []int64, flags []string) {
	data := hostile.NewData(t)
	needACLs(t, data)
	d := serve(t, data, flags...)
	c := newCast(t)
	onFiles := []string{
		"read", "write", "append", "ring-read", "ring-write", "truncate", "open-truncate",
		"fallocate", "keep-size", "zero-range", "punch-hole", "fallocate-read-only",
		"set", "get", "xattrs", "set-again", "remove", "remove",
	}
	onDirs := []string{
		"list", "enter", "create", "mkdir", "rename", "no-replace", "exchange", "unlink", "tmpfile",
		"set", "get", "xattrs", "remove",
	}
	directly := map[string]string{"ring-read": "read", "ring-write": "write"}
	compared, refused := 0, 0
	for who, u := range c.users() {
		var below, through []step
		for _, mode := range modes {
			for kind, acl := range c.acls(mode) {
				for _, dir := range []bool{false, true} {
					operations := onFiles
					if dir {
						operations = onDirs
					}
					name := fmt.Sprintf("%s %o %s %v", who, mode, kind, dir)
					makeEntry(t, filepath.Join(data, name), c, dir, mode, acl)
					makeEntry(t, filepath.Join(data, name+" directly"), c, dir, mode, acl)
					add := func(to *[]step, path, op string) {
						s := step{Op: op, Path: path, N: 1}
						switch op {
						case "fallocate", "keep-size", "zero-range", "punch-hole":
							s.N = 10000
						case "create", "mkdir":
							s.Path, s.N = filepath.Join(path, op), 0o777
						case "rename", "no-replace":
							// The second finds no source, or its name taken.
							s.Path, s.Other = filepath.Join(path, "in"), filepath.Join(path, "out")
						case "exchange":
							s.Path, s.Other = filepath.Join(path, "out"), filepath.Join(path, "create")
						case "tmpfile":
							s.Other = filepath.Join(path, "linked")
						case "set", "set-again", "get", "remove":
							s.Other, s.Value = "user.comment", []byte("value")
						case "unlink":
							s.Path = filepath.Join(path, "out")
						}
						*to = append(*to, s)
					}
					for _, op := range operations {
						add(&through, filepath.Join(d.Mount, name), op)
						if same := directly[op]; same != "" {
							op = same
						}
						add(&below, filepath.Join(data, name+" directly"), op)
					}
				}
			}
		}
		want, got := do(t, u, d.Mount, below...), do(t, u, d.Mount, through...)
		for i := range want {
			compared++
			if want[i].Errno != 0 {
				refused++
			}
			if want[i] != got[i] {
				t.Errorf("%s: %s: %v, directly %v", through[i].Op, filepath.Base(through[i].Path), got[i], want[i])
			}
		}
	}
	t.Logf("%d steps compared, of which %d are refused directly", compared, refused)
}

// New entries inherit the default ACL of their directory, and the umask matters only where
// there is none.
func TestACLsAreInherited(t *testing.T) {
	data := hostile.NewData(t)
	needACLs(t, data)
	d := serve(t, data)
	c := newCast(t)
	inherited := aclBytes(entry{tag: tagOwner, perm: 7}, entry{tagUser, 6, c.named.ID}, entry{tag: tagOwnerGroup, perm: 0},
		entry{tag: tagMask, perm: 7}, entry{tag: tagOther, perm: 0})
	for name, acl := range map[string][]byte{"with": inherited, "without": nil} {
		for _, dir := range []string{name, name + " directly"} {
			path := filepath.Join(data, dir)
			makeEntry(t, path, c, true, 0o777, nil)
			if acl != nil {
				if err := unix.Setxattr(path, defaultACL, acl, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		make := func(at string) []step {
			return []step{
				{Op: "umask", N: 0o027},
				{Op: "create", Path: filepath.Join(at, "file"), N: 0o666},
				{Op: "mkdir", Path: filepath.Join(at, "dir"), N: 0o777},
				{Op: "create", Path: filepath.Join(at, "dir", "deep"), N: 0o640},
			}
		}
		for _, at := range []string{filepath.Join(d.Mount, name), filepath.Join(data, name+" directly")} {
			for _, got := range do(t, c.other, "", make(at)...) {
				if got.Errno != 0 {
					t.Fatalf("%s: %v", at, got)
				}
			}
		}
		for _, entry := range []string{"file", "dir", "dir/deep"} {
			want, wantMode := describe(t, filepath.Join(data, name+" directly", entry))
			for _, below := range []string{data, d.Mount} {
				path := filepath.Join(below, name, entry)
				got, mode := describe(t, path)
				if !bytes.Equal(got, want) || mode != wantMode {
					t.Errorf("%s: mode %o, ACLs %x; directly %o, %x", path, mode, got, wantMode, want)
				}
			}
		}
	}
	// What the issue saw: the new file leaked to the group.
	in := func(below string) string { return filepath.Join(below, "with", "file") }
	for _, u := range []hostile.User{c.named, c.member} {
		want := do(t, u, "", step{Op: "append", Path: in(data)})
		if got := do(t, u, "", step{Op: "append", Path: in(d.Mount)}); got[0] != want[0] {
			t.Errorf("user %d appends: %v, directly %v", u.ID, got, want)
		}
	}
}

// describe returns an entry's ACLs, as bytes to compare, and its permission bits.
func describe(t *testing.T, path string) (acls []byte, mode uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	list := make([]byte, 1000)
	n, err := unix.Listxattr(path, list)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{accessACL, defaultACL} {
		value := make([]byte, 1000)
		size, err := unix.Getxattr(path, name, value)
		if err != nil && err != unix.ENODATA {
			t.Fatal(err)
		}
		if listed := bytes.Contains(list[:n], append([]byte(name), 0)); listed != (err == nil) {
			t.Errorf("%s: %s is listed: %v, and getting it is %v", path, name, listed, err)
		}
		acls = append(append(acls, name...), value[:max(size, 0)]...)
	}
	return acls, st.Mode & 0o7777
}

// The owner of a file changes its ACL through the mount, nobody else, and everybody's
// rights change at once: on disk, through the mount and for rings that are in use.
func TestACLsAreSet(t *testing.T) {
	data := hostile.NewData(t)
	needACLs(t, data)
	d := serve(t, data)
	c := newCast(t)
	acl := aclBytes(entry{tag: tagOwner, perm: 6}, entry{tagUser, 6, c.named.ID}, entry{tag: tagOwnerGroup, perm: 4},
		entry{tag: tagMask, perm: 6}, entry{tag: tagOther, perm: 0})
	for _, below := range []string{data, d.Mount} {
		makeEntry(t, filepath.Join(data, "f"), c, false, 0o640, nil)
		path := filepath.Join(below, "f")
		try := func(u hostile.User, want outcome, steps ...step) {
			t.Helper()
			for i, s := range steps {
				if s.Path == "" {
					s.Path = path
				}
				if got := do(t, u, d.Mount, s)[0]; got != want {
					t.Errorf("%s: user %d: step %d, %s: %v, want %v", path, u.ID, i, s.Op, got, want)
				}
			}
		}
		set := step{Op: "set", Other: accessACL, Value: acl}
		remove := step{Op: "remove", Other: accessACL}
		ring := []step{{Op: "ring-read", Path: filepath.Join(d.Mount, "f")}, {Op: "ring-write", Path: filepath.Join(d.Mount, "f")}}
		denied, one := outcome{Errno: unix.EACCES}, outcome{N: 1}

		try(c.named, denied, step{Op: "read"}, ring[0], ring[1])
		try(c.other, outcome{Errno: unix.EPERM}, set, remove)
		try(c.member, outcome{Errno: unix.EPERM}, set, remove)
		try(c.owner, outcome{}, set)
		try(c.owner, outcome{N: int64(len(acl))}, step{Op: "get", Other: accessACL})
		try(c.other, outcome{N: 0o660}, step{Op: "mode"})
		try(c.named, one, step{Op: "read"}, step{Op: "append"}, ring[0], ring[1])
		try(c.member, one, step{Op: "read"}, ring[0])
		try(c.member, denied, step{Op: "append"}, ring[1])
		try(c.owner, outcome{}, step{Op: "chmod", N: 0o600}) // clears the mask
		try(c.named, denied, step{Op: "read"}, ring[0])
		try(c.owner, outcome{}, remove)
		try(c.owner, outcome{Errno: unix.ENODATA}, step{Op: "get", Other: accessACL})
		if err := os.Remove(filepath.Join(data, "f")); err != nil {
			t.Fatal(err)
		}
	}
	// Those of the root are the data directory's.
	if err := unix.Setxattr(d.Mount, accessACL, acl, 0); err != unix.EPERM {
		t.Errorf("the root's ACL: %v", err)
	}
}

// A data directory without ACLs is served by its permission bits, and the log says so.
func TestNoACLs(t *testing.T) {
	daemontest.NeedRoot(t)
	disk := daemontest.NewDir(t)
	if err := unix.Mount("ramfs", disk, "ramfs", 0, "mode=755"); err != nil {
		t.Skipf("NOT TESTED: a file system without ACLs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	data := filepath.Join(disk, "data")
	if err := errors.Join(os.Mkdir(data, 0o777), os.Chmod(data, 0o777)); err != nil {
		t.Fatal(err)
	}
	d := daemontest.ServeWith(t, daemontest.Options{Data: data, Flags: []string{"--drain", "1s", "--pages-listen", "off"}})
	if !bytes.Contains([]byte(d.Log()), []byte("no POSIX ACLs")) {
		t.Errorf("the log does not say so:\n%s", d.Log())
	}
	c := newCast(t)
	makeEntry(t, filepath.Join(data, "f"), c, false, 0o640, nil)
	for _, x := range []struct {
		u    hostile.User
		want outcome
	}{{c.member, outcome{N: 1}}, {c.other, outcome{Errno: unix.EACCES}}} {
		if got := do(t, x.u, d.Mount, step{Op: "read", Path: filepath.Join(d.Mount, "f")})[0]; got != x.want {
			t.Errorf("user %d: %v, want %v", x.u.ID, got, x.want)
		}
	}
	if err := unix.Setxattr(filepath.Join(d.Mount, "f"), accessACL, aclBytes(), 0); err != unix.EOPNOTSUPP {
		t.Errorf("an ACL is set: %v", err)
	}
	got := do(t, c.owner, d.Mount, step{Op: "umask", N: 0o077}, step{Op: "create", Path: filepath.Join(d.Mount, "new"), N: 0o666}, step{Op: "mode", Path: filepath.Join(d.Mount, "new")})
	if got[2] != (outcome{N: 0o600}) {
		t.Errorf("a new file with umask 077: %v", got)
	}
}
