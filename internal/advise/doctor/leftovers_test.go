package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

// leave makes an object as a process that died an hour ago left it.
func leave(t *testing.T, dir, name string, sizeBytes int) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, make([]byte, sizeBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
	age(t, path, time.Hour)
	return path
}

func age(t *testing.T, path string, by time.Duration) {
	t.Helper()
	then := time.Now().Add(-by)
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
}

func there(path string) bool { _, err := os.Lstat(path); return err == nil }

// Only unused objects are removed. Objects that are mapped or open are kept, even if /proc
// does not show that; so are young ones, links, and objects with other names.
func TestFix(t *testing.T) {
	dir, err := os.MkdirTemp(shm.Dir, "kv3fs-doctor-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	unused := []string{
		leave(t, dir, "sem."+ringserver.SemPrefix+"1", 32), leave(t, dir, "hf3fs-iov-1", 2<<20),
		leave(t, dir, "3FSClient_1_2_rd", 4096), leave(t, dir, "nixl_hf3fs.1", 0),
		leave(t, dir, memory.NamePrefix+"1", 4096),
	}
	mapped, open, young := leave(t, dir, "hf3fs-iov-mapped", 8192), leave(t, dir, "hf3fs-iov-open", 8192), leave(t, dir, "hf3fs-iov-young", 8192)
	python, foreign := leave(t, dir, "psm_1", 8192), leave(t, dir, "uc_shm_cache_1", 8192)
	age(t, young, 30*time.Second)
	if err := os.Mkdir(filepath.Join(dir, "hf3fs-iov-directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "hf3fs-iov-link")
	if err := os.Symlink(foreign, link); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(mapped, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	unix.Close(fd)
	// A descriptor that no process holds: it is in flight between two.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if fd, err = unix.Open(open, unix.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)

	all := checkLeftovers(dir, 0, time.Now(), false)
	want(t, "look", all[0], "shm.leftovers", Warning)
	if !strings.HasPrefix(all[0].Found, "5 objects (2.0 MiB)") {
		t.Errorf("found: %s", all[0].Found)
	}
	want(t, "python", byID(t, all, "shm.python"), "shm.python", Note)
	if slices.ContainsFunc(all, func(f Finding) bool { return f.ID == "shm.unclear" }) {
		t.Errorf("something that is not a regular file is reported: %+v", all)
	}
	for _, path := range unused {
		if !there(path) {
			t.Fatalf("without --fix, %s was removed", path)
		}
	}

	want(t, "fix", checkLeftovers(dir, 0, time.Now(), true)[0], "shm.leftovers", OK)
	for _, path := range unused {
		if there(path) {
			t.Errorf("%s is still there", path)
		}
	}
	for _, path := range []string{mapped, open, young, python, foreign, link} {
		if !there(path) {
			t.Errorf("%s is gone", path)
		}
	}

	unix.Munmap(memory)
	if all := checkLeftovers(dir, 0, time.Now(), true); there(mapped) || !strings.HasPrefix(all[0].Found, "removed 1 object") {
		t.Errorf("after it was unmapped: %+v", all[0])
	}
}

// A few semaphores are only a note, and no leftovers are OK.
func TestLittleLeft(t *testing.T) {
	dir := t.TempDir()
	want(t, "nothing", checkLeftovers(dir, 0, time.Now(), false)[0], "shm.leftovers", OK)
	leave(t, dir, "sem."+ringserver.SemPrefix+wire.NewUUID().String(), 32)
	want(t, "one", checkLeftovers(dir, 0, time.Now(), false)[0], "shm.leftovers", Note)
	want(t, "no directory", checkLeftovers(filepath.Join(dir, "none"), 0, time.Now(), false)[0], "shm.leftovers", Note)
}

// Any user can create objects with any name there, so names are quoted before they are
// printed.
func TestNamesAreShown(t *testing.T) {
	dir := t.TempDir()
	leave(t, dir, "hf3fs-iov-\x1b[2Jx", 32)
	if f := checkLeftovers(dir, 0, time.Now(), false)[0]; strings.Contains(f.Found, "\x1b") || !strings.Contains(f.Found, `"hf3fs-iov-\x1b[2Jx"`) {
		t.Errorf("%q", f.Found)
	}
}

// A semaphore that is mapped, as the daemon maps its own, is kept.
func TestLivingSemaphore(t *testing.T) {
	name := ringserver.SemPrefix + wire.NewUUID().String()
	sem, err := shm.CreateSem(name, uint32(os.Geteuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer sem.Close(true)
	age(t, sem.Path(), time.Hour)
	if x := inspect(sem.Path(), time.Now(), true); x.use != used || !there(sem.Path()) {
		t.Errorf("a semaphore that is mapped: %+v", x)
	}
}
