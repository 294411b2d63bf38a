package limits

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

func semPrograms() map[string]hostile.Program {
	return map[string]hostile.Program{"semaphores": semaphores, "deface": defaceProgram, "python": pythonProgram, "doctor": doctorProgram}
}

// ownSemaphores returns where the submit links lead their caller.
func ownSemaphores(mount string) (paths []string, err error) {
	for _, link := range []string{"submit-ios", "submit-ios.ph", "submit-ios.pl"} {
		path, err := os.Readlink(hostile.Iovs(mount, link))
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// semaphores reports the caller's semaphores, and an error for each of others that it can
// open.
func semaphores(s *hostile.Self) error {
	var a struct {
		Mount  string
		Others []string
	}
	if err := s.Args(&a); err != nil {
		return err
	}
	for _, path := range a.Others {
		for _, flags := range []int{os.O_RDONLY, os.O_RDWR} {
			if f, err := os.OpenFile(path, flags, 0); !errors.Is(err, os.ErrPermission) {
				f.Close()
				return fmt.Errorf("open another user's %s: %w", path, err)
			}
		}
		if err := os.Remove(path); !errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("remove another user's %s: %w", path, err)
		}
	}
	paths, err := ownSemaphores(a.Mount)
	if err != nil {
		return err
	}
	for _, path := range paths {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		f.Close()
	}
	return s.Report(paths)
}

// Each user has semaphores that only it can open, and keeps them.
func TestSemaphoresArePrivate(t *testing.T) {
	d := serve(t, "--limit-ring-users", "2")
	type args struct {
		Mount  string
		Others []string
	}
	u, v, w := hostile.NewUser(t), hostile.NewUser(t), hostile.NewUser(t)
	var first, others, again []string
	hostile.Run(t, u, "semaphores", args{Mount: d.Mount}, &first)
	hostile.Run(t, v, "semaphores", args{Mount: d.Mount, Others: first}, &others)
	hostile.Run(t, u, "semaphores", args{Mount: d.Mount, Others: others}, &again)
	if strings.Join(first, " ") != strings.Join(again, " ") {
		t.Errorf("a user's semaphores changed from %v to %v", first, again)
	}
	// One user too many gets the set of one that has no rings.
	read(t, d, w, 1, hostile.Patience)
	if left := hostile.Objects(v.ID); len(left) != 0 {
		t.Errorf("three users have semaphores, the limit is two: %v", left)
	}
	read(t, d, v, 1, hostile.Patience)
}

// deface asks a user to write over semaphores.
type deface struct {
	Mount string
	Paths []string // beside the caller's own
	Loop  bool     // until stopped, with everything that destroys one; else the waiter count once
	Ring  bool     // has the caller's semaphores awaited
}

func defaceProgram(s *hostile.Self) error {
	var a deface
	if err := s.Args(&a); err != nil {
		return err
	}
	own, err := ownSemaphores(a.Mount)
	if err != nil {
		return err
	}
	paths := append(own, a.Paths...)
	if !a.Loop {
		for _, path := range paths {
			if err := overwrite(path, make([]byte, 8)); err != nil && !errors.Is(err, os.ErrPermission) {
				return err
			}
		}
		return s.Report(own)
	}
	if a.Ring {
		r, err := hostile.NewRing(a.Mount, 4, ".r0.t0")
		if err != nil {
			return err
		}
		defer r.Close()
	}
	if err := s.Report(own); err != nil {
		return err
	}
	for s.Running() {
		for _, path := range paths { // those of others cannot be opened
			_ = os.Truncate(path, 0)
			_ = overwrite(path, bytes.Repeat([]byte{0xff}, 32))
			_ = overwrite(path, make([]byte, 32))
			_ = overwrite(path, []byte{0xff, 0xff, 0xff, 0x7f})
		}
	}
	return nil
}

func overwrite(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(b, 0)
	return err
}

// While nobody has a ring, other processes of a user and another user clear the counts of
// waiters of all semaphores that they can open. The next client is served, and a stop is
// prompt and blames no disk.
func TestSemaphoreDefacedWhileIdle(t *testing.T) {
	d := serve(t)
	u := hostile.NewUser(t)
	var paths []string
	hostile.Run(t, u, "deface", deface{Mount: d.Mount}, &paths)
	hostile.Run(t, hostile.NewUser(t), "deface", deface{Mount: d.Mount, Paths: paths}, &paths)
	const limit = 4 * time.Second // the daemon's deadline is 5 s
	read(t, d, u, 3, limit)
	hostile.Run(t, u, "deface", deface{Mount: d.Mount}, &paths)
	hostile.Run(t, hostile.NewUser(t), "deface", deface{Mount: d.Mount}, &paths)
	began := time.Now()
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if strings.Contains(d.Log(), "does not answer") {
		t.Errorf("the log blames the disk:\n%s", d.Log())
	}
}

// pythonReads reads through the Python package, hence the C library, and prints the longest
// batch in seconds.
const pythonReads = `
import os, sys, time
from multiprocessing.shared_memory import SharedMemory
from hf3fs_fuse import io

path = sys.argv[1]
mount = io.extract_mount_point(path)
fd = os.open(path, os.O_RDONLY)
io.register_fd(fd)
shm = SharedMemory(create=True, size=8 * 4096)
iov = io.make_iovec(shm, mount)
shm.unlink()
longest = 0
for n in range(10):
    ring = io.make_ioring(mount, 8)
    for m in range(20):
        began = time.monotonic()
        for i in range(8):
            ring.prepare(iov[i * 4096:(i + 1) * 4096], True, fd, i * 4096)
        done = ring.submit().wait(min_results=8, timeout=30.0)
        longest = max(longest, time.monotonic() - began)
        assert [d.result for d in done] == [4096] * 8, [d.result for d in done]
        assert bytes(shm.buf[:]) == os.pread(fd, 8 * 4096, 0)
        del done
    del ring
del iov
io.deregister_fd(fd)
os.close(fd)
shm.close()
print(longest)
`

type python struct{ Source, Library, Path string }

func pythonProgram(s *hostile.Self) error {
	var a python
	if err := s.Args(&a); err != nil {
		return err
	}
	cmd := exec.Command("python3", "-c", pythonReads, a.Path)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+a.Source, "PYTHONDONTWRITEBYTECODE=1", "HF3FS_USRBIO_LIBRARY="+a.Library)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("python3: %w\n%s", err, out)
	}
	var seconds float64
	if _, err := fmt.Sscan(string(out), &seconds); err != nil {
		return fmt.Errorf("python3 printed %q", out)
	}
	return s.Report(seconds)
}

// pythonOf returns what it takes to run Python's client as any user; an empty Source: there
// is no Python.
func pythonOf(t *testing.T) (a python) {
	t.Helper()
	if exec.Command("python3", "-c", "import ctypes, sys; sys.exit(sys.version_info < (3, 9))").Run() != nil {
		t.Log("NOT TESTED: the clients in Python and C: there is no python3, 3.9 or later")
		return python{}
	}
	dir := daemontest.NewDir(t)
	for _, args := range [][]string{
		{"make", "-s", "-C", "../../../clients/c", "BUILD=" + dir + "/c", "all"},
		{"cp", "-r", "../../../clients/python/src", dir + "/python"},
		{"chmod", "-R", "a+rX", dir},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return python{Source: filepath.Join(dir, "python"), Library: filepath.Join(dir, "c", "libhf3fs_api_shared.so")}
}

// A user destroys semaphores in a loop, with and without rings of its own. The clients of
// another user, in Go, Python and C, are served as if nothing happened; and those of the same
// user, whose semaphores they are, are served too, only later.
func TestSemaphoreDefacedInLoop(t *testing.T) {
	d := serve(t)
	clients := pythonOf(t)
	honest, hog := hostile.NewUser(t), hostile.NewUser(t)
	var theirs []string
	hostile.Run(t, honest, "semaphores", deface{Mount: d.Mount}, &theirs)
	hogs := []*hostile.Process{
		hostile.Start(t, hog, "deface", deface{Mount: d.Mount, Paths: theirs, Loop: true, Ring: true}),
		hostile.Start(t, hostile.NewUser(t), "deface", deface{Mount: d.Mount, Paths: theirs, Loop: true}),
	}
	for _, p := range hogs {
		var own []string
		p.Await(&own)
	}
	const limit = 4 * time.Second // the daemon's deadline is 5 s
	began := time.Now()
	got := read(t, d, honest, 200, limit)
	t.Logf("another user, Go: 200 batches in %v, longest %v", time.Since(began), got.Longest)
	// If only the daemon's looks every 50 ms had served it, it would have taken 10 s.
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("200 batches took %v", took)
	}
	got = read(t, d, hog, 20, limit)
	t.Logf("the same user, Go: longest %v", got.Longest)
	if clients.Source != "" {
		for name, u := range map[string]hostile.User{"another user": honest, "the same user": hog} {
			clients.Path = newFile(t, d, u, 8*4096, 5)
			var seconds float64
			hostile.Run(t, u, "python", clients, &seconds)
			t.Logf("%s, Python: longest %.3f s", name, seconds)
			if seconds > limit.Seconds() {
				t.Errorf("%s, Python: a batch took %.3f s", name, seconds)
			}
		}
	}
	for _, p := range hogs {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(d.Log(), "submit semaphore"); n > 10 {
		t.Errorf("%d lines about semaphores in the log:\n%s", n, d.Log())
	}
}

type finding struct{ ID, Status, Found string }

func doctorProgram(s *hostile.Self) error {
	var a struct{ Binary, Mount string }
	if err := s.Args(&a); err != nil {
		return err
	}
	out, err := exec.Command(a.Binary, "doctor", "--json", "--no-bandwidth", "--mount", a.Mount).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) { // its status says whether there are findings
		return err
	}
	var report struct{ Findings []finding }
	if err := json.Unmarshal(out, &report); err != nil {
		return fmt.Errorf("%w in %s", err, out)
	}
	return s.Report(report.Findings)
}

// The doctor of one user tries that user's own semaphores, even while they are being damaged,
// and says nothing about those of others, which it cannot open.
func TestDoctorAsUser(t *testing.T) {
	if testing.Short() {
		t.Skip("hostile users need a daemon of their own")
	}
	daemontest.NeedRoot(t)
	d := daemontest.ServeWith(t, daemontest.Options{Data: hostile.NewData(t)})
	u, v := hostile.NewUser(t), hostile.NewUser(t)
	var others []string
	hostile.Run(t, v, "semaphores", deface{Mount: d.Mount}, &others)
	for _, path := range others {
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	binary, err := daemontest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		var findings []finding
		hostile.Run(t, u, "doctor", map[string]string{"Binary": binary, "Mount": d.Mount}, &findings)
		rings := 0
		for _, f := range findings {
			if strings.Contains(f.Found, filepath.Base(others[0])) || f.ID == "ring" && f.Status != "ok" {
				t.Errorf("%s: %+v", when, f)
			}
			if f.ID == "ring" {
				rings++
			}
		}
		if rings != 1 {
			t.Errorf("%s: rings are not mentioned: %+v", when, findings)
		}
	}
	check("at rest")
	hog := hostile.Start(t, u, "deface", deface{Mount: d.Mount, Loop: true})
	var own []string
	hog.Await(&own)
	check("while the semaphores are being damaged")
	if err := hog.Stop(); err != nil {
		t.Error(err)
	}
}
