package limits

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
	"github.com/kv3fs/kv3fs/internal/wire"
)

func unseenPrograms() map[string]hostile.Program {
	return map[string]hostile.Program{"unseen": unseen}
}

// unseen opens a file, holds a handle of the registration directory as libraries do, reads
// the file through a ring and reports the completions. It runs until it is killed.
func unseen(s *hostile.Self) error {
	var path, mount string
	args := []*string{&path, &mount}
	if err := s.Args(&args); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	dir, err := os.Open(hostile.Iovs(mount, ""))
	if err != nil {
		return err
	}
	defer dir.Close()
	object := "hf3fs-iov-" + wire.NewUUID().String() // which stays, as with upstream's library
	mem, err := shm.Create(object, 4096, 0o600)
	if err != nil {
		return err
	}
	defer mem.Unmap()
	id, err := hostile.Register(mount, filepath.Join(shm.Dir, object), "")
	if err != nil {
		return err
	}
	ring, err := hostile.NewRing(mount, 4, ".r0.t0")
	if err != nil {
		return err
	}
	defer ring.Close()
	ring.Push(0, wire.Args{BufID: id, FileIno: st.Ino, Len: 4096})
	ring.Post()
	if err := s.Report(ring.Reap(1, hostile.Patience)); err != nil {
		return err
	}
	<-s.Stopped()
	return nil
}

// A daemon in a PID namespace of its own, as in a container without the host's, does not see
// the processes of its clients. Their rights are those with which they have opened a file, and
// their registrations and objects go when they are killed, though others of their user live.
func TestDaemonInItsOwnPIDNamespace(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a daemon of its own")
	}
	daemontest.NeedRoot(t)
	d := daemontest.ServeWith(t, daemontest.Options{OwnPIDs: true, Flags: []string{"--drain", "1s"}})
	u := hostile.NewUser(t)
	group := hostile.NewUser(t).ID // nobody's own
	u.Groups = []uint32{group}
	path := filepath.Join(d.Data, "of-a-group")
	if err := errors.Join(os.WriteFile(path, make([]byte, 1000), 0o640), os.Chown(path, 0, int(group)), os.Chmod(path, 0o640)); err != nil {
		t.Fatal(err)
	}
	begin := func(who hostile.User) (p *hostile.Process) {
		p = hostile.Start(t, who, "unseen", []string{filepath.Join(d.Mount, "of-a-group"), d.Mount})
		var got []wire.Cqe
		p.Await(&got)
		if len(got) != 1 || got[0].Result != 1000 {
			t.Errorf("a read through a ring: %+v, want 1000 bytes", got)
		}
		return p
	}
	asUser := cred.Caller{UID: u.ID, GID: u.ID}
	// registered counts the user's links, and objects in /dev/shm but for the semaphores.
	registered := func() (links, objects int) {
		err := cred.RunAs(asUser, func() error {
			names, err := os.ReadDir(hostile.Iovs(d.Mount, ""))
			links = len(names) - 3 // the submit links
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range hostile.Objects(u.ID) {
			if !strings.HasPrefix(filepath.Base(path), "sem.") {
				objects++
			}
		}
		return links, objects
	}
	killed, alive := begin(u), begin(u)
	if links, objects := registered(); links != 4 || objects != 4 {
		t.Fatalf("%d links and %d objects of two clients, want 4 and 4", links, objects)
	}
	killed.Kill()
	for end := time.Now().Add(hostile.Patience); ; time.Sleep(10 * time.Millisecond) {
		links, objects := registered()
		if links == 2 && objects == 3 { // the ring's object has a name of this test's
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d links and %d objects of one client, want 2 and 3", links, objects)
		}
	}
	if err := alive.Stop(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(d.Log(), "hostPID") {
		t.Error("the log does not ask for the host's PID namespace")
	}
	value := make([]byte, 4096)
	if n, err := unix.Getxattr(d.Mount, wire.DaemonXattr, value); err != nil || !strings.Contains(string(value[:n]), `"unseen":true`) {
		t.Errorf("the doctor is not told: %q, %v", value[:max(n, 0)], err)
	}
	err := cred.RunAs(asUser, func() error {
		f, err := os.Open(filepath.Join(d.Mount, "of-a-group"))
		if err == nil {
			f.Close()
		}
		return err
	})
	if !errors.Is(err, os.ErrPermission) {
		t.Errorf("the user opens the file without the group: %v", err)
	}
}
