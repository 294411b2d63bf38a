package tree

import (
	"os"
	"strconv"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
)

// descriptors returns how many this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// Descriptors that the tree can do without are bounded: the files of a ring's user whose
// files are open in another access mode, those for direct I/O, and those of removed files.
func TestSpareDescriptors(t *testing.T) {
	const most, files = 8, 20
	tr, _ := newTree(t, Options{})
	tr.spare = quota.New(most)
	var handles []*Handle
	var ids, inos []uint64
	for i := range files {
		e, h := create(t, tr, RootID, strconv.Itoa(i), alice, 0o666)
		handles = append(handles, h)
		ids, inos = append(ids, e.ID), append(inos, e.Attr.Ino)
	}
	before := descriptors(t)
	for _, ino := range inos {
		for _, write := range []bool{true, false} {
			f := must(tr.Acquire(ino, alice, write))
			f.DirectFD()
			f.Release()
		}
	}
	for i := range files {
		if err := tr.Unlink(RootID, strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	if now := descriptors(t); now > before+most {
		t.Errorf("%d descriptors more, the bound is %d", now-before, most)
	}
	if used := tr.spare.Used(alice.UID); used != most/4 {
		t.Errorf("alice has %d, want its share", used)
	}
	for _, h := range handles {
		h.Close()
	}
	for _, id := range ids {
		if owner, toClose := tr.Forget(id, 1); toClose {
			tr.CloseForgotten(owner)
		}
	}
	if left := tr.spare.Total(); left != 0 {
		t.Errorf("%d are left when everything is closed", left)
	}
}
