package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
	"github.com/kv3fs/kv3fs/internal/wire"
)

var (
	quiet = slog.New(slog.DiscardHandler)
	// One kernel under three names, and another host that shares the directory.
	hostA = hostID{Identity: "machine-1", Machine: "1", Boot: "boot1", Host: "a"}
	podB  = hostID{Identity: "host-pod-b", Boot: "boot1", Host: "pod-b"}
	named = hostID{Identity: "kv", Named: true, Boot: "boot1", Host: "c"}
	other = hostID{Identity: "machine-2", Machine: "2", Boot: "boot2", Host: "d"}
)

func mustOpen(t *testing.T, data string, me hostID) *state {
	t.Helper()
	s, err := openState(data, me, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A kernel serves a data directory once, whatever the names of its host and its containers
// are; the second daemon's error names the first.
func TestOneDaemonOnAKernel(t *testing.T) {
	data := t.TempDir()
	first := mustOpen(t, data, hostA)
	for _, me := range []hostID{hostA, podB, named} {
		if _, err := openState(data, me, nil, quiet); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("served already, by process %d", os.Getpid())) {
			t.Errorf("second daemon %+v: %v", me, err)
		}
	}
	first.close()
	mustOpen(t, data, podB).close()
}

// Hosts that share a directory may all start at once, as after a power cut, on a file system whose locks reach all of them.
func TestManyHostsStartAtOnce(t *testing.T) {
	data := faultdir.New(t).Path
	for range 10 {
		var hosts sync.WaitGroup
		for n := range 8 {
			hosts.Go(func() {
				name := fmt.Sprint(n)
				s, err := openState(data, hostID{Identity: "machine-" + name, Machine: name, Boot: "boot" + name, Host: name}, nil, quiet)
				if err != nil {
					t.Error(err)
					return
				}
				s.close()
			})
		}
		hosts.Wait()
	}
}

// A daemon of version 0.1 locks only a directory with the name of its host.
func TestBesideTheLastVersion(t *testing.T) {
	data := t.TempDir()
	old := filepath.Join(data, tree.StateName, hostsDir, "old-name")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := tryLock(filepath.Join(old, "lock"), os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	for _, me := range []hostID{hostA, {Identity: "machine-3", Machine: "3", Boot: "boot3", Host: "old-name"}} {
		if _, err := openState(data, me, nil, quiet); err == nil || !strings.Contains(err.Error(), "served already") {
			t.Errorf("beside it: %v", err)
		}
	}
	lock.Close()
	s := mustOpen(t, data, hostA)
	defer s.close()
	if s.dir != old {
		t.Errorf("its directory was not taken over: %s", s.dir)
	}
}

// Which state directory a host chooses among several.
func TestChooseHost(t *testing.T) {
	old := func(host string) foundHost { return foundHost{path: "/hosts/" + host, id: hostID{Host: host}} }
	made := func(id hostID) foundHost { return foundHost{path: "/hosts/" + id.Identity, id: id} }
	reboot := func(id hostID) hostID { id.Boot = "later"; return id }
	for name, c := range map[string]struct {
		all   []foundHost
		me    hostID
		local bool
		want  int
	}{
		"none":                                {nil, hostA, true, -1},
		"its own":                             {[]foundHost{made(other), made(hostA)}, hostA, false, 1},
		"its own after a reboot":              {[]foundHost{made(other), made(hostA)}, reboot(hostA), false, 1},
		"version 0.1, by host name":           {[]foundHost{old("x"), old("a")}, hostA, false, 1},
		"version 0.1, another name":           {[]foundHost{old("x")}, hostA, true, 0},
		"version 0.1, another host's, shared": {[]foundHost{old("x")}, hostA, false, -1},
		"version 0.1, several":                {[]foundHost{old("x"), old("y")}, hostA, true, -1},
		"version 0.1, by flag":                {[]foundHost{old("x"), old("kv")}, named, false, 1},
		"a flag for the first time":           {[]foundHost{made(other), made(hostA)}, named, false, 1},
		"a pod with a new name":               {[]foundHost{made(other), made(podB)}, hostID{Identity: "host-pod-c", Boot: "boot1", Host: "pod-c"}, false, 1},
		"the same after a reboot, local":      {[]foundHost{made(podB)}, hostID{Identity: "host-pod-c", Boot: "later", Host: "pod-c"}, true, 0},
		"the same after a reboot, shared":     {[]foundHost{made(podB)}, hostID{Identity: "host-pod-c", Boot: "later", Host: "pod-c"}, false, -1},
		"a pod with its name on another node": {[]foundHost{made(other), made(podB)}, hostID{Identity: "host-pod-b", Boot: "boot2x", Host: "pod-b"}, false, 1},
		"another named one on this kernel":    {[]foundHost{made(named)}, hostID{Identity: "kv2", Named: true, Boot: "boot1", Host: "c"}, false, -1},
		"the disk of another machine":         {[]foundHost{made(other)}, hostA, true, 0},
		"a shared directory":                  {[]foundHost{made(other)}, hostA, false, -1},
	} {
		if got := chooseHost(c.all, c.me, c.local); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A state directory that is not taken over is named, with the flag that takes it over; and that
// flag does.
func TestNamesWhatItDoesNotUse(t *testing.T) {
	data := t.TempDir()
	for _, host := range []string{"x", "y"} {
		if err := os.MkdirAll(filepath.Join(data, tree.StateName, hostsDir, host, pagesDir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	s, err := openState(data, hostA, nil, slog.New(slog.NewTextHandler(&text, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	for _, want := range []string{"--identity x ", "--identity y "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, &text)
		}
	}
	again := mustOpen(t, data, hostID{Identity: "x", Named: true, Boot: "boot1", Host: "a"})
	defer again.close()
	if filepath.Base(again.dir) != "x" {
		t.Error(again.dir)
	}
}

// On a local disk the locks of kernels that have ended are removed.
func TestOldBootsAreRemoved(t *testing.T) {
	data := t.TempDir()
	mustOpen(t, data, hostA).close()
	later := hostA
	later.Boot = "boot9"
	s := mustOpen(t, data, later)
	defer s.close()
	left, err := os.ReadDir(filepath.Join(data, tree.StateName, bootsDir))
	if err != nil || len(left) != 1 || left[0].Name() != "boot9" {
		t.Errorf("%v, %v", left, err)
	}
}

// The semaphores of a killed daemon are removed though the host has another name by now, and
// nothing else that the file names.
func TestLeftovers(t *testing.T) {
	data := t.TempDir()
	killed := mustOpen(t, data, hostA)
	left, err := shm.CreateSem(ringserver.SemPrefix+wire.NewUUID().String(), uint32(os.Geteuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close(true)
	innocent, err := shm.CreateSem("kv3fs-test-"+wire.NewUUID().String(), uint32(os.Geteuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer innocent.Close(true)
	name := filepath.Base(left.Path())
	// A prefix that is too short could mean the semaphores of another daemon.
	others := []string{filepath.Base(innocent.Path()), "/dev/shm/../shm/x", "sem." + ringserver.SemPrefix, name[:len("sem."+ringserver.SemPrefix)+8]}
	if err := killed.noteSemaphores(strings.Join(append(others, name[:len(name)-17]), " ")); err != nil {
		t.Fatal(err)
	}
	killed.close()
	if err := os.Mkdir(filepath.Join(filepath.Dir(killed.dir), "second"), 0o700); err != nil { // so that none is the only one
		t.Fatal(err)
	}
	next := mustOpen(t, data, other)
	defer next.close()
	if next.dir == killed.dir {
		t.Fatal("the other host has taken the directory over")
	}
	if n := next.removeLeftovers(""); n != 1 {
		t.Errorf("%d objects removed, want 1", n)
	}
	if _, err := os.Stat(left.Path()); !os.IsNotExist(err) {
		t.Errorf("the leftover is still there: %v", err)
	}
	if _, err := os.Stat(innocent.Path()); err != nil {
		t.Error(err)
	}
}

// A state directory that every user can write to, or that is another user's, is refused, and
// nobody is told to remove it: it holds the page index. One that its group can write to, as an
// fsGroup makes it, is mended.
func TestStateOpenToOthers(t *testing.T) {
	data := t.TempDir()
	mustOpen(t, data, hostA).close()
	top := filepath.Join(data, tree.StateName)
	host := filepath.Join(top, hostsDir, hostA.Identity)
	for dir, cure := range map[string]string{top: "chmod 700", host: "chmod 700"} {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if _, err := openState(data, hostA, nil, quiet); err == nil || !strings.Contains(err.Error(), cure) || strings.Contains(err.Error(), "remove") {
			t.Errorf("%s: %v", dir, err)
		}
		if err := os.Chmod(dir, 0o2770|os.ModeSetgid); err != nil {
			t.Fatal(err)
		}
		mustOpen(t, data, hostA).close()
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
		s, err := tree.Open(data, tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	if err := os.Chown(top, 12345, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := openState(data, hostA, nil, quiet); !errors.Is(err, errForeign) || !strings.Contains(err.Error(), "chown -R 0 ") {
		t.Errorf("another user's: %v", err)
	}
	if s, err := readonlyState(data, hostA, nil, quiet); err != nil || s.dir != "" || s.noteSemaphores("x") != nil || s.removeLeftovers("") != 0 {
		t.Errorf("another user's, only to be read: %+v, %v", s, err)
	}
}

// A page index of version 0.1, in a directory with a host name, is found under every new name.
func TestTakesOverThePageIndex(t *testing.T) {
	data := t.TempDir()
	url, stop := pagesOn(t, data)
	if status, answer := post(t, url+"/0/initialize", `{"num_pages":10}`); status != 204 {
		t.Fatal(status, answer)
	}
	if status, answer := post(t, url+"/0/reserve_and_allocate_page_indices", `{"keys":[["k",""]]}`); status != 200 || answer != `{"indices":[[false,0]]}` {
		t.Fatal(status, answer)
	}
	if status, answer := post(t, url+"/0/confirm_write", `{"written_keys_to_confirm":[["k",0]],"pages_to_release":[]}`); status != 204 {
		t.Fatal(status, answer)
	}
	stop()
	hosts := filepath.Join(data, tree.StateName, hostsDir)
	dirs, err := os.ReadDir(hosts)
	if err != nil || len(dirs) != 1 {
		t.Fatal(dirs, err)
	}
	old := filepath.Join(hosts, "a-name-of-last-week")
	if err := errors.Join(os.Rename(filepath.Join(hosts, dirs[0].Name()), old), os.Remove(filepath.Join(old, hostFile))); err != nil {
		t.Fatal(err)
	}
	url, stop = pagesOn(t, data)
	defer stop()
	if status, answer := post(t, url+"/0/exists", `{"keys":["k"]}`); status != 200 || answer != `{"exists":[true]}` {
		t.Errorf("after the takeover: %d %s", status, answer)
	}
}

func TestValidIdentity(t *testing.T) {
	for name, good := range map[string]bool{
		"kv-0": true, "Node_7.example": true, "": false, ".": false, "..": false, ".x": false, "a/b": false, "a b": false,
		strings.Repeat("x", 64): true, strings.Repeat("x", 65): false,
	} {
		if err := ValidIdentity(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// The mount point is the path that the kernel will show (usrbio.md 1.2).
func TestMountPoint(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(dir, "real")
	if err := os.Mkdir(real, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if got, err := mountPoint(filepath.Join(dir, "link", "mnt")); err != nil || got != filepath.Join(real, "mnt") {
		t.Errorf("below a link: %q, %v", got, err)
	}
	if _, err := mountPoint(filepath.Join(dir, "link")); err == nil || !strings.Contains(err.Error(), real) {
		t.Errorf("a link itself: %v", err)
	}
	if _, err := mountPoint(filepath.Join(dir, "missing", "mnt")); err == nil {
		t.Error("a missing parent was accepted")
	}
}

// A process that goes on with the locks of the program before it names itself in them as that one did: whoever finds them locked reads it.
func TestInheritedLockNamesHolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	lock, err := takeLock(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // one start and two upgrades
		noteHolder(lock)
		if pid := holderOf(file); pid != os.Getpid() {
			text, _ := os.ReadFile(file)
			t.Fatalf("process %d holds the lock, read of %q; want %d", pid, text, os.Getpid())
		}
		if lock, err = takeLock(file, lock); err != nil {
			t.Fatal(err)
		}
	}
	lock.Close()
}
