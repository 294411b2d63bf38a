package ringserver

import (
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// The registrations of processes that the daemon cannot see end with the last use of their
// memory, and only then.
func TestUnseenClients(t *testing.T) {
	s, _ := serve(t, Options{})
	unseen := cred.Caller{UID: me.UID, GID: me.GID}
	killed := leave(t, s, 0, "hf3fs-iov-"+wire.NewUUID().String())
	alive := leave(t, s, 0, "hf3fs-iov-"+wire.NewUUID().String())
	defer alive.m.Unmap()
	name := left{name: "hf3fs-iov-" + wire.NewUUID().String()}
	ring, err := shm.Create(name.name, wire.RingBytes(8), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer shm.Remove(name.name)
	if _, err := s.Register(unseen, wire.NewUUID().String()+".r0.t0", name.path()); err != nil {
		t.Fatal(err)
	}
	release := func() {
		h, err := s.DirOpened(unseen)
		if err != nil {
			t.Fatal(err)
		}
		s.DirReleased(h)
	}
	release() // as somebody who lists the directory
	for range 3 {
		s.owners.unseen.look()
	}
	if n := len(s.table.all()); n != 3 {
		t.Fatalf("%d registrations are left of 3 that are in use", n)
	}
	ring.Unmap()
	killed.m.Unmap() // as the kernel does when a process exits, before it closes its files
	release()
	eventually(t, "the registrations end", func() bool { return len(s.table.all()) == 1 })
	eventually(t, "its object is removed", func() bool { return !killed.exists() })
	if !alive.exists() || s.table.all()[0].Target != alive.path() {
		t.Error("the other registration has ended")
	}
}
