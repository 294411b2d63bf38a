package controldir_test

import (
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/test/leaktest"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// stayEnv makes the test binary a process that lives until its standard
// input ends: a stand-in for an ln(1) caught in the middle of symlink(2).
const stayEnv = "KV3FS_TEST_STAY"

func TestMain(m *testing.M) {
	if os.Getenv(stayEnv) != "" {
		os.Stdout.Close() // now the arguments can be seen in /proc
		io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(leaktest.Main(m))
}

const (
	uuidA = "3fa85f64-5717-4562-b3fc-2c963f66afa6"
	uuidB = "11111111-2222-3333-4444-555555555555"
	shmA  = "/dev/shm/hf3fs-iov-a"
	shmB  = "/dev/shm/psm_b"
)

func root() cred.Caller  { return cred.Caller{} }
func alice() cred.Caller { return cred.Caller{UID: 1000, GID: 100} }
func bob() cred.Caller   { return cred.Caller{UID: 2000, GID: 200} }

// registry keeps registrations in memory and maps nothing.
type registry struct {
	entries []controldir.Registration // by index; an empty name is a free index
	open    map[uint64]cred.Caller
	handles uint64
}

func (r *registry) Register(c cred.Caller, name, target string) (controldir.Registration, error) {
	if _, err := wire.ParseLink(name); err != nil {
		return controldir.Registration{}, err
	}
	e := controldir.Registration{Index: len(r.entries), Name: name, Target: target, UID: c.UID, GID: c.GID}
	r.entries = append(r.entries, e)
	return e, nil
}

func (r *registry) Unregister(c cred.Caller, name string) error {
	e, ok := r.Lookup(name)
	switch {
	case !ok:
		return syscall.ENOENT
	case e.UID != c.UID:
		return syscall.EPERM
	}
	r.entries[e.Index] = controldir.Registration{}
	return nil
}

func (r *registry) Lookup(name string) (controldir.Registration, bool) {
	i := slices.IndexFunc(r.entries, func(e controldir.Registration) bool { return e.Name == name })
	if i < 0 {
		return controldir.Registration{}, false
	}
	return r.entries[i], true
}

func (r *registry) ByIndex(index int) (controldir.Registration, bool) {
	if index < 0 || index >= len(r.entries) || r.entries[index].Name == "" {
		return controldir.Registration{}, false
	}
	return r.entries[index], true
}

func (r *registry) List(uid uint32) []controldir.Registration {
	var es []controldir.Registration
	for _, e := range r.entries {
		if e.Name != "" && e.UID == uid {
			es = append(es, e)
		}
	}
	return es
}

func (r *registry) SubmitLink(c cred.Caller, p wire.Priority) (string, error) {
	if c == nobody() {
		return "", syscall.EMFILE
	}
	return submitTarget(c.UID, p), nil
}

func submitTarget(uid uint32, p wire.Priority) string {
	return fmt.Sprintf("/dev/shm/sem.hf3fs-submit-ios.01234567-0123-4123-8%03d-%012d", 1+p, uid)
}

// nobody is a user who gets no semaphores.
func nobody() cred.Caller { return cred.Caller{UID: 65534, GID: 65534} }

func (r *registry) DirOpened(c cred.Caller) (uint64, error) {
	if c == nobody() {
		return 0, syscall.EMFILE
	}
	r.handles++
	r.open[r.handles] = c
	return r.handles, nil
}

func (r *registry) DirReleased(handle uint64) { delete(r.open, handle) }
func (r *registry) DirsStayOpen([]uint64)     {}

type world struct {
	*controldir.Dir
	registry *registry
	settings *settings.Settings
}

func newWorld(o settings.Options) world {
	w := world{
		registry: &registry{open: map[uint64]cred.Caller{}},
		settings: settings.New(o),
	}
	w.Dir = controldir.New(w.registry, w.settings, controldir.Options{MountPoint: "/mnt/3fs/", RemountPrefix: "/data"})
	return w
}

func (w world) register(t *testing.T, c cred.Caller, name, target string) controldir.Attr {
	t.Helper()
	a, errno := w.Symlink(c, wire.InoIovs, name, target)
	if errno != 0 {
		t.Fatalf("register %s: %v", name, errno)
	}
	return a
}

func names(es []controldir.Entry) []string {
	var ns []string
	for _, e := range es {
		ns = append(ns, e.Name)
	}
	return ns
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func wantErrno(t *testing.T, what string, got, want syscall.Errno) {
	t.Helper()
	if got != want {
		t.Errorf("%s: errno %d (%v), want %d (%v)", what, int(got), got, int(want), want)
	}
}

// Case 11: the entries of 3fs-virt, their modes and inode numbers.
func TestEntries(t *testing.T) {
	w := newWorld(settings.Defaults())
	want := []controldir.Entry{
		{Name: "rm-rf", Attr: controldir.Attr{Ino: 0xfffffffffffffffd, Mode: syscall.S_IFDIR | 0o777}},
		{Name: "iovs", Attr: controldir.Attr{Ino: 0xffffffff80000000, Mode: syscall.S_IFDIR | 0o777}},
		{Name: "get-conf", Attr: controldir.Attr{Ino: 0xffffffff00000000, Mode: syscall.S_IFDIR | 0o555}},
		{Name: "set-conf", Attr: controldir.Attr{Ino: 0xfffffffe80000000, Mode: syscall.S_IFDIR | 0o777}},
	}
	got, errno := w.List(alice(), wire.InoVirt)
	wantErrno(t, "list", errno, 0)
	if !slices.Equal(got, want) {
		t.Errorf("list: %+v", got)
	}
	for _, e := range want {
		a, errno := w.Lookup(alice(), wire.InoVirt, e.Name)
		if errno != 0 || a != e.Attr {
			t.Errorf("lookup %s: %+v, %v", e.Name, a, errno)
		}
	}
	if a, errno := w.Getattr(alice(), wire.InoVirt); errno != 0 || a != (controldir.Attr{Ino: 0xfffffffffffffffe, Mode: syscall.S_IFDIR | 0o555}) {
		t.Errorf("3fs-virt: %+v, %v", a, errno)
	}
	for _, name := range []string{"", "mv", "IOVS", "rm-rf/"} {
		_, errno := w.Lookup(alice(), wire.InoVirt, name)
		wantErrno(t, "lookup "+name, errno, syscall.ENOENT)
	}
}

// Case 12: each user sees the semaphores and only its own registrations.
func TestListShowsOnlyOwnRegistrations(t *testing.T) {
	w := newWorld(settings.Defaults())
	first := w.register(t, alice(), uuidA, shmA)
	ring := w.register(t, bob(), uuidB+".r0.t0", shmB)
	if want := (controldir.Attr{Ino: 0xffffffff7fff0001, Mode: syscall.S_IFLNK | 0o400, UID: 1000, GID: 100, Size: uint64(len(shmA))}); first != want {
		t.Errorf("reply %+v, want %+v", first, want)
	}
	if ring.Ino != 0xffffffff7fff0000 {
		t.Errorf("second registration has inode %#x", ring.Ino)
	}
	semaphores := []string{"submit-ios.ph", "submit-ios", "submit-ios.pl"}
	for _, see := range []struct {
		who  cred.Caller
		want []string
	}{
		{alice(), append(slices.Clone(semaphores), uuidA)},
		{bob(), append(slices.Clone(semaphores), uuidB+".r0.t0")},
		{root(), semaphores},
	} {
		es, errno := w.List(see.who, wire.InoIovs)
		wantErrno(t, "list", errno, 0)
		equal(t, "list", names(es), see.want)
		for _, e := range es {
			a, errno := w.Lookup(see.who, wire.InoIovs, e.Name)
			if errno != 0 || a != e.Attr {
				t.Errorf("%s: lookup %+v (%v), readdir %+v", e.Name, a, errno, e.Attr)
			}
		}
	}
}

// Case 13: another user's key is EPERM, also for root.
func TestForeignRegistration(t *testing.T) {
	w := newWorld(settings.Defaults())
	name := uuidA + ".r0.t0.f10"
	ino := w.register(t, alice(), name, shmA).Ino
	for _, c := range []cred.Caller{bob(), root()} {
		_, errno := w.Lookup(c, wire.InoIovs, name)
		wantErrno(t, "lookup", errno, syscall.EPERM)
		_, errno = w.Getattr(c, ino)
		wantErrno(t, "getattr", errno, syscall.EPERM)
		_, errno = w.Readlink(c, ino)
		wantErrno(t, "readlink", errno, syscall.EPERM)
		wantErrno(t, "unlink", w.Unlink(c, wire.InoIovs, name), syscall.EPERM)
		wantErrno(t, "unlink by alias", w.Unlink(c, wire.InoIovs, uuidA+".r0.t0.f2"), syscall.EPERM)
	}
	target, errno := w.Readlink(alice(), ino)
	if errno != 0 || target != shmA {
		t.Errorf("owner reads %q, %v", target, errno)
	}
	wantErrno(t, "owner's unlink", w.Unlink(alice(), wire.InoIovs, name), 0)
	_, errno = w.Readlink(alice(), ino)
	wantErrno(t, "readlink of what the kernel still remembers", errno, syscall.ENOENT)
	wantErrno(t, "second unlink", w.Unlink(alice(), wire.InoIovs, name), syscall.ENOENT)
}

func TestSubmitLinks(t *testing.T) {
	w := newWorld(settings.Defaults())
	for name, want := range map[string]struct {
		ino      uint64
		priority wire.Priority
	}{
		"submit-ios.ph": {0xffffffff7fffffff, wire.High},
		"submit-ios":    {0xffffffff7ffffffe, wire.Normal},
		"submit-ios.pl": {0xffffffff7ffffffd, wire.Low},
	} {
		// The attributes are the same for all, also for a user who cannot read the link: the
		// kernel caches them.
		for _, c := range []cred.Caller{alice(), bob(), root(), nobody()} {
			a, errno := w.Lookup(c, wire.InoIovs, name)
			size := len(submitTarget(c.UID, want.priority))
			if errno != 0 || a != (controldir.Attr{Ino: want.ino, Mode: syscall.S_IFLNK | 0o666, Size: uint64(size)}) {
				t.Errorf("%s: %+v, %v", name, a, errno)
			}
			if got, errno := w.Getattr(c, a.Ino); errno != 0 || got != a {
				t.Errorf("%s: attributes %+v, %v, lookup said %+v", name, got, errno, a)
			}
			target, errno := w.Readlink(c, a.Ino)
			if c == nobody() {
				wantErrno(t, "a link for one user too many", errno, syscall.EMFILE)
			} else if errno != 0 || target != submitTarget(c.UID, want.priority) {
				t.Errorf("%s leads user %d to %q, %v", name, c.UID, target, errno)
			}
		}
		// Case 14.
		wantErrno(t, "unlink "+name, w.Unlink(root(), wire.InoIovs, name), syscall.EPERM)
	}
}

// Cases 16 and 17: errnos of the registry reach the client; what it accepts is found.
func TestRegistrationErrors(t *testing.T) {
	w := newWorld(settings.Defaults())
	for name, want := range map[string]syscall.Errno{
		"foo": syscall.EIO, uuidA + ".b0": syscall.EINVAL, uuidA + ".t5": syscall.EINVAL,
	} {
		_, errno := w.Symlink(alice(), wire.InoIovs, name, shmA)
		wantErrno(t, name, errno, want)
	}
	es, _ := w.List(alice(), wire.InoIovs)
	if len(es) != 3 {
		t.Errorf("refused names are listed: %q", names(es))
	}
}

// Case 66: upstream's library destroys a ring by the decimal spelling of its
// flags, and the kernel looks that name up before it sends the unlink.
func TestDecimalFlags(t *testing.T) {
	w := newWorld(settings.Defaults())
	created, destroyed := uuidA+".r0.t0.f10", uuidA+".r0.t0.f2"
	a := w.register(t, alice(), created, shmA)
	if got, errno := w.Lookup(alice(), wire.InoIovs, destroyed); errno != 0 || got != a {
		t.Errorf("lookup of the decimal spelling: %+v, %v", got, errno)
	}
	wantErrno(t, "unlink", w.Unlink(alice(), wire.InoIovs, destroyed), 0)
	_, errno := w.Lookup(alice(), wire.InoIovs, created)
	wantErrno(t, "after it", errno, syscall.ENOENT)

	// A ring with exactly that name comes first: .f10 is flags 2, though 10 is 0b1010.
	w.register(t, alice(), uuidA+".r0.t0.f1010", shmA)
	w.register(t, alice(), created, shmB)
	wantErrno(t, "unlink", w.Unlink(alice(), wire.InoIovs, created), 0)
	_, errno = w.Lookup(alice(), wire.InoIovs, uuidA+".r0.t0.f1010")
	wantErrno(t, "the other ring", errno, 0)
}

// Read-only mode protects files. Registrations are not files.
func TestRegistrationsInReadonlyMode(t *testing.T) {
	o := settings.Defaults()
	o.Readonly = true
	w := newWorld(o)
	w.register(t, alice(), uuidA, shmA)
	wantErrno(t, "unlink", w.Unlink(alice(), wire.InoIovs, uuidA), 0)
	_, errno := w.RemoveTarget(alice(), "/mnt/3fs/d")
	wantErrno(t, "rm-rf", errno, syscall.EROFS)
}

// Case 15 and similar: nothing else can be created or removed in the control directory.
func TestRefusals(t *testing.T) {
	w := newWorld(settings.Defaults())
	ino := w.register(t, alice(), uuidA, shmA).Ino
	for _, dir := range []uint64{wire.InoVirt, wire.InoGetConf, wire.InoRmRf} {
		_, errno := w.Symlink(alice(), dir, "x", shmA)
		wantErrno(t, "symlink", errno, syscall.EPERM)
	}
	for _, dir := range []uint64{wire.InoVirt, wire.InoGetConf, wire.InoSetConf, wire.InoRmRf} {
		wantErrno(t, "unlink", w.Unlink(alice(), dir, "x"), syscall.EPERM)
		_, errno := w.Readlink(alice(), dir)
		wantErrno(t, "readlink of a directory", errno, syscall.EINVAL)
	}
	gone := uint64(wire.InoIovFirst - 77)
	for _, at := range []struct {
		ino  uint64
		want syscall.Errno
	}{{ino, syscall.ENOTDIR}, {wire.InoSubmitLow, syscall.ENOTDIR}, {gone, syscall.ENOENT}, {1, syscall.ENOENT}, {wire.TransientIno(wire.InoRmRf), syscall.ENOENT}} {
		_, errno := w.Lookup(alice(), at.ino, "x")
		wantErrno(t, "lookup below a symlink", errno, at.want)
		_, errno = w.List(alice(), at.ino)
		wantErrno(t, "list of a symlink", errno, at.want)
		_, errno = w.OpenDir(alice(), at.ino)
		wantErrno(t, "opendir of a symlink", errno, at.want)
		_, errno = w.Symlink(alice(), at.ino, "x", shmA)
		wantErrno(t, "symlink below a symlink", errno, at.want)
		wantErrno(t, "unlink below a symlink", w.Unlink(alice(), at.ino, "x"), at.want)
	}
}

// Handles of iovs reach the registry, each with its caller; others do not.
func TestDirectoryHandles(t *testing.T) {
	w := newWorld(settings.Defaults())
	h, errno := w.OpenDir(alice(), wire.InoIovs)
	wantErrno(t, "opendir", errno, 0)
	other, errno := w.OpenDir(bob(), wire.InoIovs)
	wantErrno(t, "opendir", errno, 0)
	plain, errno := w.OpenDir(alice(), wire.InoVirt)
	wantErrno(t, "opendir", errno, 0)
	_, errno = w.OpenDir(nobody(), wire.InoIovs)
	wantErrno(t, "opendir of a user who gets no handles", errno, syscall.EMFILE)
	if len(w.registry.open) != 2 || h == other {
		t.Fatalf("handles %d, %d; open %v", h, other, w.registry.open)
	}
	w.ReleaseDir(wire.InoVirt, plain)
	w.ReleaseDir(wire.InoIovs, h)
	if len(w.registry.open) != 1 {
		t.Fatalf("open after release: %v", w.registry.open)
	}
	for _, c := range w.registry.open {
		if c != bob() {
			t.Errorf("bob's handle was released, %v's is open", c)
		}
	}
}
