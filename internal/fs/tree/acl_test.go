package tree

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// maskedACL lets the owner and nobody else read and write, and has a mask that looks like
// rights of the group in the mode.
func maskedACL() []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][2]uint16{{0x01, 6}, {0x04, 0}, {0x10, 6}, {0x20, 0}} { // owner, group, mask, other
		b = binary.LittleEndian.AppendUint16(b, e[0])
		b = binary.LittleEndian.AppendUint16(b, e[1])
		b = binary.LittleEndian.AppendUint32(b, 0xffffffff)
	}
	return b
}

func needACLs(t *testing.T, tr *Tree) {
	t.Helper()
	if !tr.HasACLs() {
		t.Skip("NOT TESTED: the file system has no ACLs")
	}
}

// The mode's bits for the group are no right where there is an ACL, also not for a file
// that the kernel opened without asking for one.
func TestOpenDoesNotProveRightsOfAMask(t *testing.T) {
	needRoot(t)
	tr, dir := newTree(t, Options{})
	needACLs(t, tr)
	e, h := create(t, tr, RootID, "f", root, 0o660)
	h.Close()
	path := filepath.Join(dir, "f")
	if err := os.Chown(path, 0, int(alice.GID)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(path, AccessACL, maskedACL(), 0); err != nil {
		t.Fatal(err)
	}
	seen := alice
	seen.PID = uint32(os.Getpid())
	open := must(tr.Open(e.ID, seen, unix.O_RDWR))
	defer open.Close()
	for _, write := range []bool{false, true} {
		if err := mayUse(tr, e, alice, write); err != unix.EACCES {
			t.Errorf("write %v: %v", write, err)
		}
	}
	if err := mayUse(tr, e, root, true); err != nil {
		t.Errorf("root: %v", err)
	}
}

// An ACL that is set through the tree counts for a file that rings use already.
func TestSetACLVoidsVerdicts(t *testing.T) {
	needRoot(t)
	tr, dir := newTree(t, Options{})
	needACLs(t, tr)
	e, h := create(t, tr, RootID, "f", root, 0o660)
	defer h.Close() // while it is open, verdicts are remembered
	if err := os.Chown(filepath.Join(dir, "f"), 0, int(alice.GID)); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		by   cred.Caller
		acl  []byte
		err  error
		want error // for alice afterwards
	}{
		{root, maskedACL(), nil, unix.EACCES},
		{alice, nil, unix.EPERM, unix.EACCES},
		{root, nil, nil, nil},
		{root, []byte("no ACL"), unix.EOPNOTSUPP, nil},
	} {
		if err := tr.SetACL(e.ID, AccessACL, x.acl, x.by); err != x.err {
			t.Errorf("ACL %x by %d: %v, want %v", x.acl, x.by.UID, err, x.err)
		}
		for range 2 {
			if err := mayUse(tr, e, alice, true); err != x.want {
				t.Errorf("ACL %x by %d: alice writes: %v, want %v", x.acl, x.by.UID, err, x.want)
			}
		}
	}
	for what, err := range map[string]error{
		"the root":       tr.SetACL(RootID, AccessACL, maskedACL(), root),
		"another name":   tr.SetACL(e.ID, "user.x", maskedACL(), root),
		"an unused node": tr.SetACL(12345, AccessACL, maskedACL(), root),
	} {
		if err == nil {
			t.Errorf("%s got an ACL", what)
		}
	}
}
