package ringserver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// patience bounds every wait for something that should happen soon.
const patience = 30 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not true after %v: %s", patience, what)
		}
	}
}

// left is an object that a client has registered and left behind.
type left struct {
	name string
	m    *shm.Mapping
}

func (l left) path() string { return filepath.Join(shm.Dir, l.name) }

func (l left) exists() bool {
	_, err := os.Lstat(l.path())
	return err == nil
}

// leave registers a new object for process pid, which holds it mapped until m.Unmap.
func leave(t *testing.T, s *Server, pid uint32, name string) left {
	t.Helper()
	l := left{name: name}
	var err error
	if l.m, err = shm.Create(name, 4096, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(l.path()) })
	c := cred.Caller{UID: me.UID, GID: me.GID, PID: pid}
	if _, err := s.Register(c, wire.NewUUID().String(), l.path()); err != nil {
		t.Fatal(err)
	}
	return l
}

// What a client that exits leaves in /dev/shm is removed, if it is of no use to anybody.
func TestLeftoversAreRemoved(t *testing.T) {
	s, _ := serve(t, Options{})
	pid := sleepers(t, 1)[0]
	unique := func(prefix string) string { return prefix + wire.NewUUID().String() }

	iov := leave(t, s, pid, unique("hf3fs-iov-"))
	iov.m.Unmap()
	shared := leave(t, s, pid, unique("psm_")) // by another process, for longer
	own := leave(t, s, pid, unique("kv3fs-test-"))
	own.m.Unmap()
	cache := leave(t, s, pid, unique("kv3fs-mem-cache-"))
	cache.m.Unmap()
	replaced := leave(t, s, pid, unique("hf3fs-iov-"))
	replaced.m.Unmap()
	if err := errors.Join(os.Remove(replaced.path()), os.WriteFile(replaced.path(), []byte("another"), 0o600)); err != nil {
		t.Fatal(err)
	}
	link := leave(t, s, pid, unique("hf3fs-iov-"))
	link.m.Unmap()
	if err := errors.Join(os.Remove(link.path()), os.Symlink(own.path(), link.path())); err != nil {
		t.Fatal(err)
	}
	foreign := leave(t, s, pid, unique("hf3fs-iov-"))
	foreign.m.Unmap()
	if me.UID == 0 {
		if err := os.Chown(foreign.path(), 12345, 12345); err != nil {
			t.Fatal(err)
		}
	}

	kill(t, pid)
	eventually(t, "the iov is removed", func() bool { return !iov.exists() })
	eventually(t, "all but the shared one are settled", func() bool { return s.leftovers.places.Total() == 1 })
	for what, l := range map[string]left{
		"an object in use": shared, "one with a name of the client's choice": own, "a shared cache": cache,
		"one made later under the name": replaced, "a symbolic link": link,
	} {
		if !l.exists() {
			t.Errorf("%s was removed", what)
		}
	}
	if me.UID == 0 && !foreign.exists() {
		t.Error("an object of another user was removed")
	}
	shared.m.Unmap()
	eventually(t, "it is removed once nobody uses it", func() bool { return !shared.exists() })
}

// A user cannot have the daemon remove what the user could not: root's object, which all may
// open.
func TestLeftoversOfOthersAreKept(t *testing.T) {
	if me.UID != 0 {
		t.Skip("needs another user")
	}
	s, _ := serve(t, Options{})
	name := "hf3fs-iov-" + wire.NewUUID().String()
	m, err := shm.Create(name, 4096, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	m.Unmap()
	path := filepath.Join(shm.Dir, name)
	defer os.Remove(path)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	pid := sleepers(t, 1)[0]
	if _, err := s.Register(cred.Caller{UID: 12345, GID: 12345, PID: pid}, wire.NewUUID().String(), path); err != nil {
		t.Fatal(err)
	}
	kill(t, pid)
	eventually(t, "the registration ends", func() bool { return len(s.table.all()) == 0 })
	eventually(t, "the object is settled", func() bool { return s.leftovers.places.Total() == 0 })
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}
