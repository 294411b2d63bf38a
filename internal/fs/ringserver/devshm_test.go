package ringserver

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
	"github.com/kv3fs/kv3fs/internal/wire"
)

const ordinary = 12345 // a user

// Clients with a /dev/shm of their own have rings there, as root of a container and as a user that is root in a user namespace. Their
// semaphores are there too, wake the daemon, and go with the last process.
func TestOwnDevShm(t *testing.T) {
	for name, uid := range map[string]uint32{"root": 0, "user namespace": ordinary} {
		t.Run(name, func(t *testing.T) {
			s, files := serve(t, Options{})
			content := pattern(1 << 20)
			ino := fileWith(t, files, content)
			c := newContainer(t, uid, own)
			other := newContainer(t, uid, own) // has one of its own, too
			for _, c := range []*container{c, other} {
				buf, id, err := c.object(s, 1<<20, "")
				if err != nil {
					t.Fatal(err)
				}
				r := c.peer(s, 8)
				if n := r.one(wire.Args{BufID: uuidOf(t, id), FileIno: ino, Len: 1 << 20}); n != 1<<20 {
					t.Fatalf("read: %d", n)
				}
				got := make([]byte, 1<<20)
				buf.CopyOut(got, 0)
				if !bytes.Equal(got, content) {
					t.Error("bytes differ")
				}
				// A post that nobody awaits stays.
				r.submit()
				eventually(t, "the daemon takes a post", func() bool { return c.posts(r.sem) == 0 })
			}
			if n := len(c.semaphores()); n != 3 {
				t.Errorf("%d semaphores", n)
			}
			if first, second := c.semaphores(), other.semaphores(); slices.Contains(second, first[0]) {
				t.Error("two /dev/shm have the same semaphores")
			}
			if left := objectsOf(t, uid); len(left) > 0 {
				t.Errorf("in the daemon's own /dev/shm: %v", left)
			}
			// Another process holds the tmpfs of the first.
			witness, err := os.Open(c.path(shm.Dir))
			if err != nil {
				t.Fatal(err)
			}
			defer witness.Close()
			c.end()
			eventually(t, "everything of a process that has exited is removed", func() bool {
				names, err := os.ReadDir("/proc/self/fd/" + pidOf(int(witness.Fd())))
				if err != nil {
					t.Fatal(err)
				}
				return len(names) == 0
			})
			if n := len(other.semaphores()); n != 3 {
				t.Errorf("the other has %d semaphores", n)
			}
		})
	}
}

func uuidOf(t *testing.T, name string) wire.UUID {
	t.Helper()
	link, err := wire.ParseLink(name)
	if err != nil {
		t.Fatal(err)
	}
	return link.ID
}

// objectsOf lists a user's objects in this process's own /dev/shm; none for root, who has others.
func objectsOf(t *testing.T, uid uint32) (names []string) {
	t.Helper()
	all, err := os.ReadDir(shm.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if info, err := e.Info(); err == nil && info.Sys().(*syscall.Stat_t).Uid == uid && uid != 0 {
			names = append(names, e.Name())
		}
	}
	return names
}

// Semaphores in several /dev/shm are awaited together, in one call to the kernel and without.
func TestSemaphoresElsewhereAreAwaited(t *testing.T) {
	kernels(t, func(t *testing.T, waitForMany bool) {
		sems := newSems(t, 16, waitForMany)
		shms := newDevShms(sems.endIn)
		type client struct {
			*container
			x   *devShm
			sem *shm.NamedSem
		}
		var all []client
		for _, uid := range []uint32{0, ordinary, ordinary} {
			c := newContainer(t, uid, own)
			x, doubt, err := shms.find(c.Caller)
			if err != nil || doubt != nil || x == nil {
				t.Fatal(x, doubt, err)
			}
			path, err := sems.linkIn(c.Caller, x, wire.Normal)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := sems.linkIn(c.Caller, x, wire.Normal); again != path || err != nil {
				t.Errorf("%s, %v; before: %s", again, err, path)
			}
			sems.pin(semsKey{uid, x})
			all = append(all, client{c, x, c.open(path)})
		}
		w := sems.waiter(wire.Normal)
		for _, c := range all {
			c.sem.Post()
			end := time.Now().Add(30 * time.Second)
			for posted := []uint32(nil); !slices.Contains(posted, c.UID); posted = w.posted(posted[:0]) {
				if time.Now().After(end) {
					t.Fatalf("a post of user %d does not arrive", c.UID)
				}
				w.wait(time.Second)
			}
		}
		// One that its user has removed is replaced in its place.
		c := all[1]
		if err := os.Remove(c.path(c.sem.Path())); err != nil {
			t.Fatal(err)
		}
		path, err := sems.linkIn(c.Caller, c.x, wire.Normal)
		if err != nil || path == c.sem.Path() {
			t.Fatal(path, err)
		}
		c.open(path).Post()
		eventually(t, "a post to the new semaphore arrives", func() bool {
			w.wait(time.Second)
			return slices.Contains(w.posted(nil), c.UID)
		})
		for _, c := range all {
			sems.unpin(semsKey{c.UID, c.x})
			c.x.release()
			eventually(t, "nothing is left in a /dev/shm that nothing needs", func() bool { return len(c.semaphores()) == 0 })
		}
		if len(shms.all) > 0 {
			t.Errorf("%d /dev/shm are held", len(shms.all))
		}
	})
}

// What is no tmpfs, or is reached over a symbolic link or a file system that may hang, is refused, says why, and keeps nobody waiting.
func TestForgedDevShm(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"/dev", "/dev/shm"} {
		if err := os.Mkdir(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ name, steps, text string }{
		{"hung FUSE", "private fuse=/dev/shm", "type fuse, not tmpfs"},
		{"hung FUSE above it", "private tmpfs=" + root + "/dev/shm fuse=" + root + "/dev chroot=" + root, "may not answer"},
		{"directory of a disk", "private bind=" + root + ":/dev/shm", "not tmpfs"},
		{"ramfs", "private ramfs=/dev/shm", "type ramfs"},
		{"symbolic link", "private tmpfs=" + root + "/dev mkdir=" + root + "/dev/other tmpfs=" + root + "/dev/other link=other:" + root + "/dev/shm chroot=" + root, "there is a symbolic link"},
		{"nothing", "private tmpfs=" + root + "/dev chroot=" + root, "or is not there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := &lines{}
			s, _ := serve(t, Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
			p := newContainer(t, 0, c.steps)
			const want = syscall.EACCES
			if _, err := s.Register(p.Caller, wire.NewUUID().String(), "/dev/shm/x"); !errors.Is(err, want) {
				t.Errorf("register: %v", err)
			}
			if _, err := s.SubmitLink(p.Caller, wire.Normal); !errors.Is(err, want) {
				t.Errorf("semaphore: %v", err)
			}
			if text := log.String(); strings.Count(text, c.text) != 2 || strings.Count(text, "cure=\"a tmpfs at /dev/shm") != 2 {
				t.Errorf("the log is\n%s", text)
			}
			if len(s.shms.all) > 0 {
				t.Error("it is held")
			}
		})
	}
}

// A directory of somebody else at /dev/shm gives a client no right there; nor does one that is mounted read-only.
func TestDevShmOfSomebodyElse(t *testing.T) {
	s, _ := serve(t, Options{})
	others := "kv3fs-test-" + wire.NewUUID().String()
	dir := filepath.Join(shm.Dir, others)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(dir+"/secret", make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newContainer(t, ordinary, "private bind="+dir+":/dev/shm")
	if _, err := s.Register(c.Caller, wire.NewUUID().String(), "/dev/shm/secret"); err != syscall.EACCES {
		t.Errorf("an object of root: %v", err)
	}
	if _, err := s.SubmitLink(c.Caller, wire.Normal); err != syscall.EACCES {
		t.Errorf("semaphore in a directory of root: %v", err)
	}
	for _, target := range []string{"/dev/shm/../" + others, "/dev/shm/" + others + "/secret", "/dev/shm/.", "/secret"} {
		if _, err := s.Register(c.Caller, wire.NewUUID().String(), target); err != syscall.EACCES && err != syscall.EINVAL {
			t.Errorf("%s: %v", target, err)
		}
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("it has %v", names)
	}
	sealed := newContainer(t, 0, own+" touch=/dev/shm/x readonly=/dev/shm")
	if _, err := s.Register(sealed.Caller, wire.NewUUID().String(), "/dev/shm/x"); err != syscall.EACCES {
		t.Errorf("an object that is read-only for its container: %v", err)
	}
	if _, err := s.SubmitLink(sealed.Caller, wire.Normal); err != syscall.EROFS {
		t.Errorf("semaphore where the container may not write: %v", err)
	}
}

// A client that may not search the directory at its /dev/shm reaches nothing in it, whatever the mode of that.
func TestDevShmThatMayNotBeSearched(t *testing.T) {
	s, _ := serve(t, Options{})
	dir := filepath.Join(shm.Dir, "kv3fs-test-"+wire.NewUUID().String())
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(dir+"/open", make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/open", 0o666); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	c := newContainer(t, ordinary, "private bind="+dir+":/dev/shm")
	if _, err := s.Register(c.Caller, wire.NewUUID().String(), "/dev/shm/open"); err != syscall.EACCES {
		t.Errorf("register: %v", err)
	}
}

// What is in a container's /dev/shm is opened only if it is a regular file of that tmpfs.
func TestObjectsOfOwnDevShm(t *testing.T) {
	s, _ := serve(t, Options{})
	c := newContainer(t, 0, own+" mkdir=/dev/shm/a fuse=/dev/shm/a fifo=/dev/shm/fifo mkdir=/dev/shm/d link=/etc/passwd:/dev/shm/l touch=/dev/shm/m bind=/etc/passwd:/dev/shm/m")
	if err := unix.Mknod(c.path(shm.Dir+"/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"a": syscall.EACCES, "d": syscall.EINVAL, "l": syscall.EACCES, "m": syscall.EACCES, "null": syscall.EINVAL, "fifo": syscall.EINVAL, "none": syscall.EINVAL} {
		if _, err := s.Register(c.Caller, wire.NewUUID().String(), "/dev/shm/"+name); err != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// A process that has exited, has executed another program or has changed its namespace.
func TestDevShmOfAProcessThatChanges(t *testing.T) {
	s, _ := serve(t, Options{})
	c := newContainer(t, 0, own)
	if _, _, err := c.object(s, 4096, ""); err != nil {
		t.Fatal(err)
	}
	first, err := s.SubmitLink(c.Caller, wire.Normal)
	if err != nil {
		t.Fatal(err)
	}
	if answer := c.send("exec"); answer != "ready" {
		t.Fatal(answer)
	}
	if again, err := s.SubmitLink(c.Caller, wire.Normal); again != first || err != nil {
		t.Errorf("after exec: %s, %v; before: %s", again, err, first)
	}
	// In another namespace it has other semaphores, and not in any number.
	for n := 1; ; n++ {
		if answer := c.send("unshare private tmpfs=/dev/shm"); answer != "done" {
			t.Fatal(answer)
		}
		link, err := s.SubmitLink(c.Caller, wire.Normal)
		if n < mostShms && (err != nil || link == first || len(c.semaphores()) != 3) {
			t.Fatalf("in namespace %d: %s, %v, %d semaphores", n, link, err, len(c.semaphores()))
		}
		if n == mostShms {
			if err != syscall.EMFILE {
				t.Errorf("in namespace %d: %v", n, err)
			}
			break
		}
	}
	if _, _, err := c.object(s, 4096, ""); err != nil {
		t.Errorf("an iov needs no semaphore: %v", err)
	}
	if err := c.cmd.Process.Kill(); err != nil { // not waited for, so that no other process gets its number
		t.Fatal(err)
	}
	eventually(t, "nothing is held for a process that has exited", func() bool {
		s.shms.mu.Lock()
		defer s.shms.mu.Unlock()
		return len(s.shms.all) == 0
	})
	if _, err := s.Register(c.Caller, wire.NewUUID().String(), "/dev/shm/x"); !errors.Is(err, syscall.EACCES) {
		t.Errorf("register of a process that has exited: %v", err)
	}
}

// Another process with the number of one that has exited is not taken for it.
func TestReusedProcessID(t *testing.T) {
	s, _ := serve(t, Options{})
	c := newContainer(t, 0, own)
	x, _, err := s.shms.find(c.Caller)
	if err != nil {
		t.Fatal(err)
	}
	defer x.release()
	it := keptProcess{TGID: int(c.PID), Start: startOf(int(c.PID))}
	again, err := s.shms.ofProcess(it, x.id)
	if err != nil || again != x {
		t.Fatal(again, err)
	}
	again.release()
	it.Start++
	if _, err := s.shms.ofProcess(it, x.id); err != errOwnerGone {
		t.Errorf("of a process that was started at another time: %v", err)
	}
	it.Start--
	if _, err := s.shms.ofProcess(it, devShmID{Dev: x.id.Dev, Ino: x.id.Ino + 1}); err == nil {
		t.Error("another directory is taken for it")
	}
}

// A daemon that may not look, and one that cannot see the process, say so, and serve those that have its own /dev/shm.
func TestDevShmThatCannotBeSeen(t *testing.T) {
	log := &lines{}
	s, _ := serve(t, Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	c := newContainer(t, 0, own)
	unseen := cred.Caller{UID: me.UID, GID: me.GID}
	if _, err := s.Register(unseen, wire.NewUUID().String(), "/dev/shm/none"); !errors.Is(err, syscall.EACCES) {
		t.Errorf("of a process that cannot be seen: %v", err)
	}
	if text := log.String(); !strings.Contains(text, "hostPID: true") {
		t.Errorf("the log is\n%s", text)
	}
	log.reset()
	without(t, unix.CAP_SYS_PTRACE, func() {
		if _, err := s.Register(c.Caller, wire.NewUUID().String(), "/dev/shm/none"); !errors.Is(err, syscall.EACCES) {
			t.Errorf("without CAP_SYS_PTRACE: %v", err)
		}
	})
	if text := log.String(); !strings.Contains(text, "CAP_SYS_PTRACE") {
		t.Errorf("the log is\n%s", text)
	}
	path, _ := sparse(t, 4096)
	for _, c := range []cred.Caller{unseen, me} {
		if _, err := s.Register(c, wire.NewUUID().String(), path); err != nil {
			t.Errorf("an object in the daemon's own /dev/shm: %v", err)
		}
	}
}

// without runs fn on a thread that lacks a capability.
func without(t *testing.T, capability int, fn func()) {
	t.Helper()
	done := make(chan error)
	go func() { // the thread ends with the goroutine
		lockAndDrop(capability, fn, done)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A container that shares the daemon's /dev/shm is served there, whatever else its namespace has.
func TestSharedDevShm(t *testing.T) {
	s, _ := serve(t, Options{})
	c := newContainer(t, 0, "private tmpfs=/mnt")
	link, err := s.SubmitLink(c.Caller, wire.Normal)
	if err != nil {
		t.Fatal(err)
	}
	if mine, err := s.SubmitLink(me, wire.Normal); err != nil || mine != link {
		t.Errorf("%s, %v; the container has %s", mine, err, link)
	}
	if len(s.shms.all) > 0 {
		t.Error("it is taken for another one")
	}
}

// A thousand namespaces of four users are served, with KV3FS_SOAK.
func TestThousandDevShm(t *testing.T) {
	if os.Getenv("KV3FS_SOAK") == "" {
		t.Skip("it starts a thousand processes: KV3FS_SOAK=1m")
	}
	s, files := serve(t, Options{})
	ino := fileWith(t, files, pattern(4096))
	for i := range 1000 {
		c := newContainer(t, ordinary+uint32(i%4), own)
		_, id, err := c.object(s, 4096, "")
		if err != nil {
			t.Fatal(i, err)
		}
		if n := c.peer(s, 4).one(wire.Args{BufID: uuidOf(t, id), FileIno: ino, Len: 4096}); n != 4096 {
			t.Fatalf("container %d reads %d", i, n)
		}
	}
}

// A user's namespaces are bounded, and never take those of others.
func TestManyDevShm(t *testing.T) {
	const users, most = 40, 64
	s, _ := serve(t, Options{MaxRingUsers: most})
	served := 0
	for range users {
		c := newContainer(t, ordinary, own)
		if _, _, err := c.object(s, wire.RingBytes(4), ".r0.t0"); err != nil {
			t.Fatal(err)
		}
		switch _, err := s.SubmitLink(c.Caller, wire.Normal); err {
		case nil:
			served++
		case syscall.EMFILE:
		default:
			t.Fatal(err)
		}
	}
	if want := min(users, most/4); served != want {
		t.Errorf("%d of %d namespaces are served, want %d", served, users, want)
	}
	for _, uid := range []uint32{ordinary + 1, 0} {
		c := newContainer(t, uid, own)
		if _, err := s.SubmitLink(c.Caller, wire.Normal); err != nil {
			t.Errorf("user %d gets none: %v", uid, err)
		}
	}
	if _, err := s.SubmitLink(me, wire.Normal); err != nil {
		t.Errorf("clients of the host get none: %v", err)
	}
}

// Who holds the lock of its own /dev/shm, by a listing into memory that never comes, holds up nobody else.
func TestHeldDevShmHoldsUpNobody(t *testing.T) {
	dir := faultdir.New(t)
	if err := os.WriteFile(filepath.Join(dir.Beneath, "memory"), make([]byte, 1<<16), 0o666); err != nil {
		t.Fatal(err)
	}
	s, _ := serve(t, Options{})
	c := newContainer(t, 0, own)
	if _, err := s.SubmitLink(c.Caller, wire.Normal); err != nil {
		t.Fatal(err)
	}
	witness, err := os.Open(c.path(shm.Dir))
	if err != nil {
		t.Fatal(err)
	}
	defer witness.Close()
	held := dir.Hang(func(c faultdir.Call) bool { return c.Op == "read" })
	defer dir.Heal()
	if said := c.send("list=" + filepath.Join(dir.Path, "memory")); said != "done" {
		t.Fatal(said)
	}
	<-held
	c.end()

	other := newContainer(t, ordinary, own)
	served := make(chan error, 1)
	go func() {
		_, _, err := other.object(s, 4096, "")
		for _, c := range []cred.Caller{me, other.Caller} {
			if err == nil {
				_, err = s.SubmitLink(c, wire.Normal)
			}
		}
		other.end()
		served <- err
	}()
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		dir.Heal()
		<-served
		t.Fatal("clients wait for another user's")
	}
	eventually(t, "the other's end is seen", func() bool { return len(s.table.all()) == 0 })
	dir.Heal()
	eventually(t, "the semaphores are removed", func() bool {
		names, err := os.ReadDir("/proc/self/fd/" + pidOf(int(witness.Fd())))
		return err == nil && !slices.ContainsFunc(names, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), semObjects) })
	})
}

// Sets without rings make room for the same user's.
func TestIdleDevShmMakeRoom(t *testing.T) {
	s, _ := serve(t, Options{MaxRingUsers: 8})
	var all []*container
	for range 4 {
		c := newContainer(t, ordinary, own)
		all = append(all, c)
		if _, err := s.SubmitLink(c.Caller, wire.Normal); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range all {
		eventually(t, "only the last two have semaphores", func() bool { return (len(c.semaphores()) == 3) == (i >= 2) })
	}
}

// What a killed daemon has left in a container's /dev/shm is removed, and nothing that is in use or is not a semaphore.
func TestAbandonedSemaphoresElsewhere(t *testing.T) {
	s, _ := serve(t, Options{})
	old, used := "/dev/shm/sem."+SemPrefix+wire.NewUUID().String(), "/dev/shm/sem."+SemPrefix+wire.NewUUID().String()
	c := newContainer(t, ordinary, own+" touch="+old+" held="+used+" touch=/dev/shm/sem.mine touch=/dev/shm/data fifo=/dev/shm/sem."+SemPrefix+"fifo")
	if _, err := s.SubmitLink(c.Caller, wire.Normal); err != nil {
		t.Fatal(err)
	}
	for path, stays := range map[string]bool{old: false, used: true, "/dev/shm/sem.mine": true, "/dev/shm/data": true} {
		if _, err := os.Lstat(c.path(path)); (err == nil) != stays {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Objects that clients have left in their /dev/shm are removed there.
func TestLeftoversElsewhere(t *testing.T) {
	s, _ := serve(t, Options{})
	c := newContainer(t, ordinary, own)
	c.keep = true
	m, _, err := c.object(s, 4096, "")
	if err != nil {
		t.Fatal(err)
	}
	m.Unmap()
	dir, err := os.Open(c.path(shm.Dir))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c.end()
	eventually(t, "the object of a client that has exited is removed", func() bool {
		names, err := os.ReadDir("/proc/self/fd/" + pidOf(int(dir.Fd())))
		return err == nil && len(names) == 0
	})
	eventually(t, "its /dev/shm is closed", func() bool {
		s.shms.mu.Lock()
		defer s.shms.mu.Unlock()
		return len(s.shms.all) == 0
	})
}

// The next daemon goes on with rings and semaphores in a container's /dev/shm, whose objects have no name any more, and with
// those of processes that have exited it does not.
func TestDevShmAfterRestart(t *testing.T) {
	l := newLineage(t)
	l.begin(true)
	content := pattern(1 << 20)
	ino := fileWith(t, l.files, content)
	stays, ends := newContainer(t, ordinary, own), newContainer(t, 0, own)
	var peers []*peer
	var ids []wire.UUID
	for _, c := range []*container{stays, ends} {
		_, id, err := c.object(l.s, 1<<20, "")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, uuidOf(t, id))
		peers = append(peers, c.peer(l.s, 8))
		if n := peers[len(peers)-1].one(wire.Args{BufID: uuidOf(t, id), FileIno: ino, Len: 4096}); n != 4096 {
			t.Fatalf("read: %d", n)
		}
	}
	before := stays.semaphores()
	if n, err := CheckState(l.dir); n != 4 || err != nil { // what an upgrade asks
		t.Errorf("another daemon would go on with %d registrations, %v", n, err)
	}
	s := l.next(ends.end)
	if n := peers[0].one(wire.Args{BufID: ids[0], FileIno: ino, FileOff: 4096, Len: 1 << 19}); n != 1<<19 {
		t.Fatalf("read after the restart: %d\n%s", n, l.log.String())
	}
	peers[0].submit()
	eventually(t, "the daemon takes a post to the semaphore that it found", func() bool { return stays.posts(peers[0].sem) == 0 })
	if after := stays.semaphores(); !slices.Equal(before, after) {
		t.Errorf("semaphores %v, before %v", after, before)
	}
	if path, err := s.SubmitLink(stays.Caller, wire.Normal); err != nil || path != peers[0].sem.Path() {
		t.Errorf("%s, %v; before: %s", path, err, peers[0].sem.Path())
	}
	if got := s.List(0); len(got) > 0 {
		t.Errorf("of a process that has exited: %v", got)
	}
	// A daemon that nobody follows leaves nothing there.
	l.end(false)
	if left := stays.semaphores(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Where each semaphore takes a thread, those of a user's containers leave threads to others.
func TestHelpersAreShared(t *testing.T) {
	w := newSubmitWaiter(false, func(*semGroup, *submitSem) {})
	var all []*submitSem
	add := func(uid uint32, elsewhere bool) *submitSem {
		named, err := shm.CreateSem(SemPrefix+wire.NewUUID().String(), me.UID)
		if err != nil {
			t.Fatal(err)
		}
		sem := &submitSem{NamedSem: named, uid: uid, elsewhere: elsewhere}
		all = append(all, sem)
		w.add(sem)
		return sem
	}
	watched := 0
	for range mostHelpers + 1 {
		if sem := add(1, true); !sem.unwatched {
			watched++
		}
	}
	if watched != 1+mostHelpers/4 { // the leader's, and a share
		t.Errorf("%d are awaited", watched)
	}
	if add(2, true).unwatched || add(3, false).unwatched {
		t.Error("one user's containers take all threads")
	}
	for _, sem := range all {
		w.remove(sem)
		sem.close()
	}
	w.join()
	if left := w.shares.Total(); left != 0 {
		t.Errorf("%d shares are taken for ever", left)
	}
}
