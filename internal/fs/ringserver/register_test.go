package ringserver

import (
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// sparse creates an object that everybody may open, of sizeBytes or the largest possible
// size below, and returns its path.
func sparse(t *testing.T, sizeBytes int64) (path string, madeBytes int64) {
	t.Helper()
	path = filepath.Join(shm.Dir, "kv3fs-test-"+wire.NewUUID().String())
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
	defer f.Close()
	if err := f.Chmod(0o666); err != nil {
		t.Fatal(err)
	}
	for madeBytes = sizeBytes; f.Truncate(madeBytes) != nil; madeBytes /= 2 {
	}
	return path, madeBytes
}

func needUsers(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: acting as another user needs root")
	}
}

// registers fills a user's share and returns how many registrations of path it got.
func registers(t *testing.T, s *Server, uid uint32, path string, want error) (n int) {
	t.Helper()
	c := cred.Caller{UID: uid, GID: uid}
	for ; n < 1000; n++ {
		if _, err := s.Register(c, wire.NewUUID().String(), path); err != nil {
			if err != want {
				t.Errorf("user %d: %v, want %v", uid, err, want)
			}
			return n
		}
	}
	t.Fatalf("user %d is never refused", uid)
	return n
}

func unregisterAll(t *testing.T, s *Server, uid uint32) {
	t.Helper()
	for _, r := range s.List(uid) {
		if err := s.Unregister(cred.Caller{UID: uid}, r.Name); err != nil {
			t.Error(err)
		}
	}
}

// Each user's mappings are bounded, and all of theirs. What is kept for root stays.
func TestMappedBytesAreBounded(t *testing.T) {
	needUsers(t)
	s, _ := serve(t, Options{MaxMappedBytes: 64 << 20})
	path, _ := sparse(t, 1<<20)
	for i, want := range []int{16, 16, 16, 12, 0} {
		if got := registers(t, s, uint32(11+i), path, syscall.ENOMEM); got != want {
			t.Errorf("user %d has %d MiB, want %d", 11+i, got, want)
		}
	}
	if got := registers(t, s, 0, path, syscall.ENOMEM); got != 4 {
		t.Errorf("root has %d MiB, want 4", got)
	}
	unregisterAll(t, s, 12)
	if got := registers(t, s, 15, path, syscall.ENOMEM); got != 16 {
		t.Errorf("after another user has left: %d MiB, want 16", got)
	}
	for uid := range uint32(16) {
		unregisterAll(t, s, uid)
	}
	if left := s.mappedBytes.Total(); left != 0 {
		t.Errorf("%d bytes count as mapped, and nothing is", left)
	}
}

// A size that wraps around when it is rounded to pages is refused like any other.
func TestHugeObjects(t *testing.T) {
	s, _ := serve(t, Options{})
	path, _ := sparse(t, math.MaxInt64)
	if _, err := s.Register(me, wire.NewUUID().String(), path); err != syscall.ENOMEM {
		t.Errorf("%v, want ENOMEM", err)
	}
	if left := s.mappedBytes.Total(); left != 0 {
		t.Errorf("%d bytes count as mapped", left)
	}
}

// What counts is what was mapped, not what the object is by then.
func TestResizedObject(t *testing.T) {
	s, _ := serve(t, Options{})
	for _, now := range []int64{0, 1 << 30} {
		path, _ := sparse(t, 1<<20)
		name := wire.NewUUID().String()
		if _, err := s.Register(me, name, path); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, now); err != nil {
			t.Fatal(err)
		}
		if got := s.mappedBytes.Used(me.UID); got != 1<<20 {
			t.Errorf("%d bytes are mapped of an object that has %d now", got, now)
		}
		if err := s.Unregister(me, name); err != nil {
			t.Fatal(err)
		}
		if got := s.mappedBytes.Used(me.UID); got != 0 {
			t.Errorf("%d bytes are mapped afterwards", got)
		}
	}
}

// A new mapping after an expiry counts until the old one is gone, and without room for it
// the iov serves nothing any more.
func TestRemapCounts(t *testing.T) {
	needUsers(t)
	s, _ := serve(t, Options{MaxMappedBytes: 12 << 20})
	other := cred.Caller{UID: 12345, GID: 12345}
	path, _ := sparse(t, 1<<20)
	name := wire.NewUUID().String()
	if _, err := s.Register(other, name, path); err != nil {
		t.Fatal(err)
	}
	b := s.table.get(name).iov
	check := func(when string, want int64) {
		t.Helper()
		if got := s.mappedBytes.Used(other.UID); got != want<<20 {
			t.Errorf("%s: %d bytes are mapped, want %d MiB", when, got, want)
		}
	}
	check("registered", 1)
	first := b.acquire()
	if err := b.detach(first, 0, 4096, false); err != nil {
		t.Fatal(err)
	}
	check("mapped again", 2)
	second := b.acquire()
	if err := b.detach(second, 0, 4096, false); err != nil {
		t.Fatal(err)
	}
	check("mapped a third time", 3)
	third := b.acquire()
	if err := b.detach(third, 0, 4096, false); err != nil {
		t.Fatal(err)
	}
	check("a fourth time, without room", 3)
	if b.acquire() != nil {
		t.Error("the iov is still served")
	}
	first.release()
	second.release()
	third.release()
	check("released", 0)
	if err := s.Unregister(other, name); err != nil {
		t.Fatal(err)
	}
	check("gone", 0)
}

// A ring object is at most as large as wire.MostEntries need.
func TestHugeRingIsRefused(t *testing.T) {
	s, _ := serve(t, Options{})
	for entries, want := range map[int]error{wire.MostEntries: nil, wire.MostEntries + 1: syscall.EINVAL, 1 << 24: syscall.EINVAL} {
		path, _ := sparse(t, wire.RingBytes(entries))
		if _, err := s.Register(me, wire.NewUUID().String()+".r0.t0", path); err != want {
			t.Errorf("%d entries: %v, want %v", entries, err, want)
		}
	}
}

// A sixteenth of the registrations is kept for root.
func TestRegistrationsAreKeptForRoot(t *testing.T) {
	needUsers(t)
	s, _ := serve(t, Options{MaxRegistrations: 64})
	path, _ := sparse(t, 4096)
	for i, want := range []int{16, 16, 16, 12, 0} {
		if got := registers(t, s, uint32(11+i), path, syscall.EMFILE); got != want {
			t.Errorf("user %d has %d registrations, want %d", 11+i, got, want)
		}
	}
	if got := registers(t, s, 0, path, syscall.EMFILE); got != 4 {
		t.Errorf("root has %d registrations, want 4", got)
	}
}

// A lease on the object does not make a registration wait for its holder.
func TestLeasedTarget(t *testing.T) {
	s, _ := serve(t, Options{})
	path, _ := sparse(t, 4096)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("NOT TESTED: no lease: %v", err)
	}
	began := time.Now()
	if _, err := s.Register(me, wire.NewUUID().String(), path); err != syscall.EAGAIN {
		t.Errorf("%v, want EAGAIN", err)
	}
	if took := time.Since(began); took > 10*time.Second { // a lease lasts 45 s
		t.Errorf("refused after %v", took)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Register(me, wire.NewUUID().String(), path); err != nil {
		t.Errorf("after the lease: %v", err)
	}
}

// A ring that has been busy keeps no more memory than any other.
func TestIdleRingIsSmall(t *testing.T) {
	s, _ := serve(t, Options{Workers: 2})
	r := newPeer(t, s, 4000, ".r0.t0")
	for range 4000 {
		r.prep(0, wire.Args{}) // of no buffer
	}
	r.submit()
	for done := 0; done < 4000; {
		got := len(r.reap(1, 10*time.Second))
		if got == 0 {
			t.Fatalf("%d of 4000 requests were answered", done)
		}
		done += got
	}
	e := s.table.get(r.name).ring
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.spare); n > mostSpare {
		t.Errorf("the ring keeps %d requests for reuse, want at most %d", n, mostSpare)
	}
	if n := cap(e.queued); n > mostSpare {
		t.Errorf("the ring keeps room for %d requests, want at most %d", n, mostSpare)
	}
}

// What is mounted on a name in /dev/shm is not asked for anything: it may hang.
func TestMountedTarget(t *testing.T) {
	needUsers(t)
	s, _ := serve(t, Options{})
	path, _ := sparse(t, 4096)
	other, _ := sparse(t, 4096)
	if err := unix.Mount(other, path, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("NOT TESTED: no mount: %v", err)
	}
	defer func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if _, err := s.Register(me, wire.NewUUID().String(), path); err != syscall.EACCES {
		t.Errorf("%v, want EACCES", err)
	}
}
