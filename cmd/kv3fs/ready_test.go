package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// ready says whether a ring carries something there and back: on the mount, below it, and not where there is none; --daemon also what the daemon
// itself lacks. While one trip hangs, there is no other.
func TestReady(t *testing.T) {
	o := operate(t)
	o.write("models/x", 1)
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("XDG_RUNTIME_DIR", "")
	for _, dir := range []string{o.Mount, filepath.Join(o.Mount, "models")} {
		if out, errs, status := o.try("/", "ready", "--within", "1m", "--daemon", dir); status != 0 || !strings.HasPrefix(out, "ready: 4 KiB written and read back") {
			t.Fatalf("status %d: %s%s", status, out, errs)
		}
	}
	for dir, why := range map[string]string{t.TempDir(): "not on a 3FS mount", filepath.Join(o.Mount, "none"): "no such file"} {
		if out, errs, status := o.try("/", "ready", "--within", "1m", dir); status != exitFailed || out != "" || !strings.Contains(errs, why) {
			t.Errorf("%s: status %d: %s%s", dir, status, out, errs)
		}
	}
	for _, left := range []string{o.Mount, o.Data} {
		if names, err := filepath.Glob(filepath.Join(left, ".kv3fs-doctor-*")); err != nil || len(names) > 0 {
			t.Errorf("left behind: %q, %v", names, err)
		}
	}

	o.Freeze(t)
	_, errs, status := o.try("/", "ready", "--within", "1s", o.Mount)
	if status != exitFailed || !strings.Contains(errs, "no answer within 1s") {
		t.Errorf("frozen: status %d: %s", status, errs)
	}
	o.Thaw(t)
	if out, errs, status := o.try("/", "ready", "--within", "1m", "--wait", "2m", o.Mount); status != 0 {
		t.Errorf("thawed: status %d: %s%s", status, out, errs)
	}

	lock, err := tripLock(o.Mount)
	if err != nil {
		t.Fatal(err)
	}
	stuck, err := os.OpenFile(lock, os.O_RDWR, 0) // as a process has it that is stuck in the kernel
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	if err := unix.Flock(int(stuck.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, errs, status := o.try("/", "ready", "--within", "1m", o.Mount); status != exitFailed || !strings.Contains(errs, "has not come back") {
		t.Errorf("while another trip is stuck: status %d: %s", status, errs)
	}
}

// Who has made what is to be this user's own is named, and not taken for a trip that is stuck.
func TestReadyTrustsNobodysDirectory(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	for name, spoil := range map[string]func(string) error{
		"writable": func(dir string) error { return os.Chmod(dir, 0o777) },
		"link":     func(dir string) error { return errors.Join(os.Remove(dir), os.Symlink("/", dir)) },
		"file":     func(dir string) error { return errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600)) },
	} {
		t.Setenv("TMPDIR", t.TempDir())
		own, err := ownDir()
		if err == nil {
			_, err = ownDir() // again
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := spoil(own); err != nil {
			t.Fatal(err)
		}
		if _, err := tripLock("/mnt"); err == nil || !strings.Contains(err.Error(), own+" must be a directory that") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An engine's container waits for a mount that is not there yet.
func TestReadyWaits(t *testing.T) {
	skipWithoutFUSE(t)
	daemontest.NeedRoot(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	mount := filepath.Join(dir, "mnt")
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	waiting := runAs(t, detached, nil, binary(t), "", "ready", "--within", "1m", "--wait", "5m", mount)
	runAs(t, detached, nil, binary(t), "msg=serving ", "serve", "--data", filepath.Join(dir, "data"), "--mount", mount, "--pages-listen", "off", "--admin-listen", "off")
	<-waiting.exited // within --wait
	if waiting.err != nil {
		t.Errorf("%v: %s", waiting.err, waiting.said())
	}
}

// The relay has vLLM reach a page service that is somewhere else, by a socket.
func TestPagesRelay(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "pages.sock")
	runAs(t, detached, nil, binary(t), "msg=\"serving pages\"", "pages", "serve", "--data", filepath.Join(dir, "data"), "--listen", "unix:"+socket)
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	runAs(t, detached, nil, binary(t), "msg=\"relaying pages\"", "pages", "relay", "--listen", address, "--to", "unix:"+socket)
	if status, out, errs := usage("pages", "stat", "--json", "--url", "http://"+address); status != 0 || !strings.Contains(out, "pages stat") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	for args, why := range map[string]string{
		"--listen 0.0.0.0:18000 --to h:1":      "can be reached from other hosts",
		"--listen 127.0.0.1 --to h:1":          "is not HOST:PORT",
		"--listen 127.0.0.1:1 --to unix:":      "needs the path",
		"--listen 127.0.0.1:1 --to http://h:1": "neither HOST:PORT nor unix:PATH",
	} {
		if status, _, errs := usage(append([]string{"pages", "relay"}, strings.Fields(args)...)...); status != exitUsage || !strings.Contains(errs, why) {
			t.Errorf("%s: status %d: %s", args, status, errs)
		}
	}
}
