package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// detached keeps a terminal's signals from a process.
var detached = &syscall.SysProcAttr{Setsid: true}

// pidOf returns the process that has said last that it serves.
func (r *running) pidOf(t *testing.T) int {
	t.Helper()
	all := regexp.MustCompile(`msg="?serving.* pid=(\d+)`).FindAllStringSubmatch(r.said(), -1)
	if len(all) == 0 {
		t.Fatal("nothing serves")
	}
	pid, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// awaitSaid waits until the log contains a text so often.
func (r *running) awaitSaid(t *testing.T, text string, times int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); strings.Count(r.said(), text) < times; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the log does not have %q %d times", text, times)
		}
	}
}

// port returns that of the address that a line of the log names.
func (r *running) port(t *testing.T, msg string) string {
	t.Helper()
	found := regexp.MustCompile(`msg="` + msg + `" address=http://127\S+:(\d+)`).FindStringSubmatch(r.said())
	if found == nil {
		t.Fatalf("no address of %q", msg)
	}
	return found[1]
}

// get asks for an URL, over a connection of its own.
func get(socket, url string) error {
	transport := &http.Transport{DisableKeepAlives: true}
	if socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}
	}
	answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	return nil
}

// killAndAwait kills a process, and returns when the kernel has closed what it had open.
func killAndAwait(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000); n == 1 && err == nil {
			return
		}
	}
	t.Fatalf("process %d does not end", pid)
}

// A daemon that is killed is started again, and nobody who connects meanwhile is refused. SIGHUP reaches the daemon; a stop leaves nothing.
func TestHoldKeepsAddresses(t *testing.T) {
	skipWithoutFUSE(t)
	dir := t.TempDir()
	mount, socket := filepath.Join(dir, "mnt"), filepath.Join(dir, "s")
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	r := runAs(t, detached, nil, binary(t), "msg=serving ", "hold", "--", "serve", "--data", filepath.Join(dir, "data"), "--mount", mount, "--drain", "1s",
		"--pages-listen", "127.0.0.1:0,unix:"+socket, "--admin-listen", "127.0.0.1:0")
	address := func(msg string) string {
		found := regexp.MustCompile(`msg="`+msg+`" address=(http://127\S+)`).FindAllStringSubmatch(r.said(), -1)
		if found == nil {
			t.Fatalf("no address of %q", msg)
		}
		return found[0][1]
	}
	pages, admin := address("page service listens"), address("metrics, health and readiness")
	for n := 2; n < 5; n++ {
		killAndAwait(t, r.pidOf(t))
		for _, at := range []struct{ socket, url string }{{"", pages}, {socket, "http://unix"}, {"", admin}} {
			if err := get(at.socket, at.url+"/healthz"); err != nil {
				t.Errorf("a client that connected while no daemon ran: %v", err)
			}
		}
		r.awaitSaid(t, "msg=serving ", n)
	}
	if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	r.awaitSaid(t, `msg="reloaded the configuration"`, 1)
	r.stop(t)
	if r.err != nil {
		t.Errorf("after a stop hold ended with %v", r.err)
	}
	if left := daemontest.MountsBelow(mount); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
	if err := get("", pages+"/healthz"); err == nil {
		t.Error("somebody still answers")
	}
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// A daemon that is started again with other addresses has them, also where the port of one is that of a former one.
func TestHoldWithOtherAddresses(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	configure := func(lines ...string) {
		lines = append(lines, "data: "+filepath.Join(dir, "data"))
		if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("pages serve", func(t *testing.T) {
		configure("listen: 127.0.0.1:0")
		r := runAs(t, detached, nil, binary(t), "msg=\"serving pages", "hold", "--", "pages", "serve", "--config", config)
		port := r.port(t, "page service listens")
		configure("listen: localhost:" + port)
		killAndAwait(t, r.pidOf(t))
		r.awaitSaid(t, "msg=\"serving pages", 2)
		if err := get("", "http://127.0.0.1:"+port+"/healthz"); err != nil {
			t.Error(err)
		}
	})
	t.Run("serve", func(t *testing.T) {
		skipWithoutFUSE(t)
		mount := filepath.Join(dir, "mnt")
		t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
		others := []string{"mount: " + mount, "drain: 1s"}
		configure(append(others, "pages-listen: 127.0.0.1:0", "admin-listen: 127.0.0.1:0")...)
		r := runAs(t, detached, nil, binary(t), "msg=serving ", "hold", "--", "serve", "--config", config)
		pages, admin := r.port(t, "page service listens"), r.port(t, "metrics, health and readiness")
		configure(append(others, "pages-listen: 127.0.0.1:"+admin, "admin-listen: 127.0.0.1:"+pages)...)
		killAndAwait(t, r.pidOf(t))
		r.awaitSaid(t, "msg=serving ", 2)
		if err := get("", "http://127.0.0.1:"+pages+"/metrics"); err != nil {
			t.Error(err)
		}
	})
}

// Without somebody who holds its descriptors, a killed daemon's clients are refused: what the test above is held against.
func TestNobodyHoldsAddresses(t *testing.T) {
	r := runUntil(t, binary(t), "serving pages", "pages", "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	url := regexp.MustCompile(`address=(http://127\S+)`).FindStringSubmatch(r.said())[1]
	if err := get("", url+"/healthz"); err != nil {
		t.Fatal(err)
	}
	killAndAwait(t, r.pidOf(t))
	if err := get("", url+"/healthz"); err == nil {
		t.Error("somebody answers for a process that was killed")
	}
}

// As process 1 of a container, hold lets the processes go that others have left to it.
func TestHoldAsProcessOne(t *testing.T) {
	daemontest.NeedRoot(t)
	const script = `mount --make-rprivate /; mount -t proc proc /proc; (sleep 0.1 &); exec "$0" "$@"`
	r := runAs(t, &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}, nil, "/bin/sh", "serving pages", "-ec", script,
		binary(t), "hold", "--", "pages", "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	if !strings.Contains(r.said(), "serving pages") {
		t.Fatalf("it ended: %v", r.err)
	}
	one := r.cmd.Process.Pid
	children := func() (all []string) {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", one))
		for _, file := range threads {
			text, _ := os.ReadFile(file)
			all = append(all, strings.Fields(string(text))...)
		}
		return all
	}
	for end := time.Now().Add(time.Minute); len(children()) != 1; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process 1 has the children %v, and should have its server only", children())
		}
	}
	r.stop(t)
	if r.err != nil {
		t.Errorf("after a stop hold ended with %v", r.err)
	}
}

func TestHoldEndsWhereTheConfigurationIsWrong(t *testing.T) {
	for _, args := range [][]string{
		{"hold", "--", "serve", "--dta", "x"},
		{"hold", "--", "doctor"},
		{"hold", "--"},
		{"hold", "--patience", "0", "--", "serve"},
	} {
		cmd := exec.Command(binary(t), args...)
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != exitUsage {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
}
