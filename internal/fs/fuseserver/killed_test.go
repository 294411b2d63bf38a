package fuseserver

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A call that arrives while its daemon is being killed does not fail: it waits for the successor.
//
// The daemon, its client and whoever kills it share a processor, and the daemon comes last: so it is killed after the call has come, and
// before it could read it.
func TestKilledAsACallArrives(t *testing.T) {
	k := newKeptMount(t, daemonOptions{Passthrough: PassthroughOff})
	f, err := os.Create(filepath.Join(k.point, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	many := make([]byte, 1<<16) // more than the daemon has been asked before
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if allowed.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() { _ = unix.SchedSetaffinity(0, &allowed) }()
	if err := unix.SchedSetaffinity(0, &one); err != nil { // of daemons that are started from now on, too
		t.Fatal(err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(wake)
	one64 := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	const rounds = 20
	called := make(chan error, rounds)
	go func() {
		runtime.LockOSThread() // and ends with its thread
		_ = unix.SchedSetaffinity(0, &one)
		before(2)
		b := make([]byte, len(one64))
		for range rounds {
			if _, err := unix.Read(wake, b); err != nil {
				called <- err
				return
			}
			_, err := f.WriteAt(many, 0)
			called <- err
		}
	}()
	for range rounds {
		k.restart()
		pid := k.daemon.Process.Pid
		before(1)
		_, err := unix.Write(wake, one64)
		_ = unix.Kill(pid, unix.SIGKILL)
		before(0)
		if err != nil {
			t.Fatal(err)
		}
		k.restart()
		select {
		case err := <-called:
			if err != nil {
				t.Errorf("a call that came as the daemon was killed: %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a call hangs")
		}
	}
}

// before has this thread run before all of a lower rank, as far as the kernel allows; 0 is that of others.
func before(rank uint32) {
	a := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: rank}
	if rank > 0 {
		a.Policy = unix.SCHED_FIFO
	}
	_ = unix.SchedSetAttr(0, a, 0)
}

// What was opened for a client that was killed with the daemon, or while the next one starts, does not stay open.
func TestOpenForAKilledClientEnds(t *testing.T) {
	for _, with := range []bool{true, false} {
		t.Run(fmt.Sprintf("with the daemon=%v", with), func(t *testing.T) {
			k := newKeptMount(t, daemonOptions{Passthrough: PassthroughOff, Hold: "open", After: true})
			file := filepath.Join(k.data, "f")
			if err := os.WriteFile(file, nil, 0o666); err != nil {
				t.Fatal(err)
			}
			c := k.client("op", k.point)
			c.say("open f")
			if said := hear(t, k.lines); said != "held" {
				t.Fatalf("the daemon says %q", said)
			}
			k.kill()
			kill := func() {
				if err := c.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			if with {
				kill()
			}
			k.o.Wait = true
			if said := k.start(); said != "waits" {
				t.Fatalf("the successor says %q", said)
			}
			if !with {
				kill()
			}
			// A killed client that waits no more has ended, and one that the kernel makes wait is still there.
			ended := make(chan error, 1)
			go func() { ended <- c.cmd.Wait() }()
			select {
			case <-ended:
				ended <- nil
			case <-time.After(100 * time.Millisecond):
			}
			k.in.Close()
			if said := hear(t, k.lines); said != "adopted" {
				t.Fatalf("the successor says %q", said)
			}
			<-ended
			for end := time.Now().Add(20 * time.Second); hasOpen(t, k.daemon.Process.Pid, file); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the file stays open")
				}
			}
		})
	}
}

// A file that is removed while it is open goes on if the kernel has it open, too, as with passthrough. Otherwise it has gone with the
// daemon, and so its client hears, and never gets another file.
func TestRemovedWhileOpen(t *testing.T) {
	for _, mode := range []Passthrough{PassthroughAuto, PassthroughOff} {
		t.Run(fmt.Sprintf("passthrough=%v", mode == PassthroughAuto), func(t *testing.T) {
			k := newKeptMount(t, daemonOptions{Passthrough: mode})
			c := k.client("op", k.point)
			for _, line := range []string{"create f", "write f before"} {
				c.want(line, "ok")
			}
			goesOn := canMap(t, filepath.Join(k.point, "f"))
			if mode == PassthroughOff && goesOn {
				t.Fatal("a file can be mapped without passthrough")
			}
			for _, line := range []string{"unlink f", "mkdir d", "opendir d"} {
				c.want(line, "ok")
			}
			k.kill()
			if err := os.Remove(filepath.Join(k.data, "d")); err != nil {
				t.Fatal(err)
			}
			for i := range 5 { // some of which get the inode number of what is gone
				if err := os.WriteFile(filepath.Join(k.data, fmt.Sprint(i)), []byte("others"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if said := k.start(); said != "adopted" {
				t.Fatalf("the successor says %q", said)
			}
			for line, want := range map[string]string{"read f": "before", "write f before": "ok", "stat f": "ok", "fsync f": "ok"} {
				got := c.ask(line)
				if !goesOn {
					want = "stale"
				}
				if !strings.Contains(got, want) {
					t.Errorf("%s: %s, want %s", line, got, want)
				}
			}
			if got := c.ask("entries d 0"); !strings.Contains(got, "stale") {
				t.Errorf("list of a removed directory: %s", got)
			}
			for _, line := range []string{"close f", "close d", "create f", "write f again", "close f"} {
				c.want(line, "ok")
			}
			if err := c.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// canMap reports whether the kernel lets a file be mapped with MAP_SHARED.
func canMap(t *testing.T, file string) bool {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == unix.ENODEV {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	return true
}

// hasOpen reports whether a process has a file open.
func hasOpen(t *testing.T, pid int, file string) bool {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == file {
			return true
		}
	}
	return false
}
