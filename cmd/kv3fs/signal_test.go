package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// Where a daemon has a terminal, SIGHUP says that it is gone, and stops the daemon in order. Where it has none, SIGHUP has it read its configuration again.
// Under nohup it is ignored.
func TestHangup(t *testing.T) {
	skipWithoutFUSE(t)
	// These tests may run under nohup. A signal with a handler is none that a child ignores.
	caughtHere := make(chan os.Signal, 1)
	signal.Notify(caughtHere, syscall.SIGHUP)
	defer signal.Stop(caughtHere)
	bin := binary(t)

	master, terminal := openTerminal(t)
	mount := filepath.Join(t.TempDir(), "mnt")
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	d := runAs(t, &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}, terminal, bin, "msg=serving ", "serve", "--data", t.TempDir(), "--mount", mount, "--drain", "1s", "--pages-listen", "off", "--admin-listen", "off")
	if err := errors.Join(terminal.Close(), master.Close()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.exited:
	case <-time.After(time.Minute):
		t.Fatalf("it does not stop:\n%s", d.said())
	}
	if d.err != nil {
		t.Errorf("%v\n%s", d.err, d.said())
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), " "+mount+" ") {
		t.Errorf("the mount is left behind: %v", err)
	}

	nohup := filepath.Join(t.TempDir(), "kv3fs")
	script := fmt.Sprintf("#!/bin/sh\ntrap '' HUP\nexec %s \"$@\"\n", bin)
	if err := os.WriteFile(nohup, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	ignores := daemontest.ServeWith(t, daemontest.Options{Binary: nohup})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", ignores.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var caught uint64
	if _, after, ok := strings.Cut(string(status), "SigCgt:\t"); !ok {
		t.Fatalf("no SigCgt in\n%s", status)
	} else if _, err := fmt.Sscanf(after, "%x", &caught); err != nil {
		t.Fatal(err)
	}
	if caught&(1<<(syscall.SIGHUP-1)) != 0 {
		t.Error("under nohup, the daemon waits for SIGHUP")
	}
}

// openTerminal returns both ends of a pseudo-terminal.
func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, terminal
}

// One interrupt ends a replay whose daemon is stopped, although it hangs in a lookup.
func TestInterruptHungMount(t *testing.T) {
	skipWithoutFUSE(t)
	bin := binary(t)
	d := daemontest.ServeWith(t, daemontest.Options{Binary: bin})
	cmd := exec.Command(bin, "replay", "--trace", "-", "--mount", d.Mount, "--block-bytes", "4k", "--no-progress")
	trace, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	request := func(id int) {
		if _, err := fmt.Fprintf(trace, `{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[%d]}`+"\n", id); err != nil {
			t.Fatal(err)
		}
	}
	request(1)
	awaitFile(t, filepath.Join(d.Data, "kv3fs-replay", "01", "*"))
	// A request that the daemon has taken cannot be given up, not even by SIGKILL.
	awaitThreads(t, cmd.Process.Pid, func(waiting bool) bool { return !waiting })
	if err := d.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer d.Signal(syscall.SIGCONT)
	awaitStopped(t, d.PID())
	request(2)
	awaitThreads(t, cmd.Process.Pid, func(waiting bool) bool { return waiting })

	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rescue := time.AfterFunc(tidyAfter+30*time.Second, func() {
		t.Error("the replay did not end")
		_ = d.Signal(syscall.SIGCONT)
	})
	_ = cmd.Wait() // its status is looked at
	rescue.Stop()
	if cmd.ProcessState.ExitCode() != exitInterrupted || !strings.Contains(stderr.String(), "interrupted, but a call has not returned") {
		t.Errorf("%v: %s", cmd.ProcessState, stderr.String())
	}
}

// awaitThreads waits until done with whether a thread of a process waits for a FUSE daemon.
func awaitThreads(t *testing.T, pid int, done func(waiting bool) bool) {
	t.Helper()
	await(t, "threads", func() bool {
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
		waiting := false
		for _, file := range all {
			text, _ := os.ReadFile(file) // the thread may have ended
			waiting = waiting || strings.Contains(string(text), "request_wait_answer")
		}
		return done(waiting)
	})
}

// awaitStopped waits until SIGSTOP has stopped all threads of a process.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	await(t, "the stop", func() bool {
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, file := range all {
			text, _ := os.ReadFile(file)
			if _, after, ok := bytes.Cut(text, []byte(") ")); !ok || after[0] != 'T' {
				return false
			}
		}
		return len(all) > 0
	})
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
