package tree

import (
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
)

func TestLocksEndWithTheDirectory(t *testing.T) {
	tr, _ := newTree(t, Options{})
	d := must(tr.Mkdir(RootID, "d", 0o755, root, 0))
	if err := tr.Lock(d.ID, alice.UID); err != nil {
		t.Fatal(err)
	}
	tr.Forget(d.ID, 1)
	d = must(tr.Lookup(RootID, "d", 0, 0))
	if !tr.Locked(d.ID) {
		t.Error("the lock ended when the kernel forgot the directory")
	}
	tr.Forget(d.ID, 1)
	if err := removeAll(tr, root, "d"); err != nil {
		t.Fatal(err)
	}
	if len(tr.locks) != 0 {
		t.Error("the lock outlives the directory")
	}
	_, h := create(t, tr, RootID, "f", root, 0o644)
	defer h.Close()
	if err := tr.Lock(h.ID(), alice.UID); err != unix.ENOTDIR {
		t.Errorf("lock a file: %v", err)
	}
}

// A user who has too many locks gets ENOLCK, and nobody else does, until one is released.
func TestLocksOfOneUser(t *testing.T) {
	const most = 8
	tr, _ := newTree(t, Options{})
	tr.lockers = quota.New(most)
	var ids []uint64
	for i := range most {
		ids = append(ids, must(tr.Mkdir(RootID, strconv.Itoa(i), 0o755, root, 0)).ID)
	}
	for i, id := range ids[:3] {
		want := error(nil)
		if i == most/4 {
			want = unix.ENOLCK
		}
		if err := tr.Lock(id, alice.UID); err != want {
			t.Errorf("lock %d: %v, want %v", i, err, want)
		}
	}
	if err := tr.Lock(ids[3], bob.UID); err != nil {
		t.Error("another user: ", err)
	}
	if err := tr.Lock(ids[0], alice.UID); err != nil {
		t.Error("a lock that is held: ", err)
	}
	if err := tr.Unlock(ids[0]); err != nil {
		t.Error(err)
	}
	if err := removeAll(tr, root, "1"); err != nil {
		t.Error(err)
	}
	if n := tr.lockers.Used(alice.UID); n != 0 {
		t.Errorf("%d locks are held after all have ended", n)
	}
}
