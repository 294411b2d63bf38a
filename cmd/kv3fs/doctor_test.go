package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/advise/doctor"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// requireFUSE skips a test without FUSE, unless KV3FS_REQUIRE_MOUNTS forbids that.
func requireFUSE(t *testing.T) {
	t.Helper()
	if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "" {
		skipWithoutFUSE(t)
	}
}

// runDoctor runs kv3fs doctor --json, which must end within a minute.
func runDoctor(t *testing.T, bin string, args ...string) (r doctor.Report, status int) {
	t.Helper()
	return reportOf(t, exec.Command(bin, append([]string{"doctor", "--json", "--no-bandwidth"}, args...)...))
}

// reportOf runs a command that is, or ends as, a doctor with --json.
func reportOf(t *testing.T, cmd *exec.Cmd) (r doctor.Report, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	killer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer killer.Stop()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s%s", err, out.String(), errs.String())
	}
	checkJSON(t, "doctor", out.String())
	if status = cmd.ProcessState.ExitCode(); status != r.ExitStatus() {
		t.Errorf("exit status %d for %v", status, r.Status)
	}
	return r, status
}

func finding(t *testing.T, r doctor.Report, id string) doctor.Finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.ID == id {
			return f
		}
	}
	t.Errorf("no %s among %+v", id, r.Findings)
	return doctor.Finding{}
}

// The doctor examines a daemon that works, is stopped, and dies.
func TestDoctor(t *testing.T) {
	requireFUSE(t)
	bin := binary(t)
	s := serve(t, bin, t.TempDir())

	r, _ := runDoctor(t, bin, "--mount", s.mount)
	for _, id := range []string{"kernel", "mount", "daemon", "ring", "ring.container", "daemon.limits"} {
		if f := finding(t, r, id); f.Status != doctor.OK {
			t.Errorf("of a daemon that works: %+v", f)
		}
	}
	if r.Mount != s.mount || r.Data != s.data {
		t.Errorf("mount %s, data %s; want %s, %s", r.Mount, r.Data, s.mount, s.data)
	}
	if f := finding(t, r, "daemon"); !strings.Contains(f.Found, s.data) {
		t.Errorf("%+v", f)
	}
	if left, _ := os.ReadDir(s.data); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(s.mount, link); err != nil {
		t.Fatal(err)
	}
	r, _ = runDoctor(t, bin, "--mount", link)
	if f := finding(t, r, "mount.path"); f.Status != doctor.Warning || !strings.Contains(f.Fix, s.mount) {
		t.Errorf("through a link: %+v", f)
	}

	// In a container with a /dev/shm of its own.
	if os.Geteuid() == 0 {
		script := "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec \"$0\" \"$@\""
		cmd := exec.Command("sh", "-c", script, bin, "doctor", "--json", "--no-bandwidth", "--mount", s.mount)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		text, _ := cmd.Output()
		var r doctor.Report
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		if f := finding(t, r, "ring"); f.Status != doctor.OK {
			t.Errorf("with another /dev/shm: %+v", f)
		}
		if f := finding(t, r, "shm.size"); f.Status != doctor.Warning || !strings.Contains(f.Needed, "64 MiB") {
			t.Errorf("with 64 MiB of it: %+v", f)
		}
	}

	// A configuration for this mount, and one for another.
	config := filepath.Join(t.TempDir(), "sglang.json")
	for prefix, want := range map[string]doctor.Status{s.mount + "/kv/x": doctor.Failure, s.mount + "/x": doctor.OK, t.TempDir() + "/x": doctor.Failure} {
		text, _ := json.Marshal(map[string]any{"file_path_prefix": prefix, "file_size": 1 << 30, "numjobs": 16, "entries": 8})
		if err := os.WriteFile(config, text, 0o644); err != nil {
			t.Fatal(err)
		}
		r, _ = runDoctor(t, bin, "--mount", s.mount, "--engine", "sglang", "--engine-config", config)
		if f := finding(t, r, "config.path"); f.Status != want {
			t.Errorf("%s: %+v", prefix, f)
		}
	}

	s.cmd.Process.Signal(syscall.SIGSTOP)
	r, status := runDoctor(t, bin, "--mount", s.mount)
	s.cmd.Process.Signal(syscall.SIGCONT)
	if f := finding(t, r, "mount"); status != 2 || !strings.Contains(f.Found, "does not answer") || !strings.HasPrefix(f.Fix, "kill -CONT ") {
		t.Errorf("of a daemon that is stopped: %d, %+v", status, f)
	}

	s.cmd.Process.Kill()
	s.cmd.Wait()
	r, status = runDoctor(t, bin, "--mount", s.mount, "--data", s.data)
	if f := finding(t, r, "mount"); status != 2 || !strings.Contains(f.Found, "dead") || !strings.Contains(f.Fix, s.mount) || !strings.Contains(f.Fix, "umount") && !strings.Contains(f.Fix, "fusermount3") {
		t.Errorf("of a daemon that is dead: %d, %+v", status, f)
	}
	if f := finding(t, r, "data"); f.Status > doctor.Warning {
		t.Errorf("its data directory: %+v", f)
	}
	unix.Unmount(s.mount, unix.MNT_DETACH)
	r, status = runDoctor(t, bin, "--mount", s.mount)
	if f := finding(t, r, "mount"); status != 2 || f.Status != doctor.Failure || !strings.HasPrefix(f.Fix, "kv3fs serve") {
		t.Errorf("of no mount: %d, %+v", status, f)
	}
}

// --fix removes unused objects, but keeps those of a living daemon, however old they
// are.
func TestDoctorFix(t *testing.T) {
	requireFUSE(t)
	bin := binary(t)
	s := serve(t, bin, t.TempDir())
	old := time.Now().Add(-time.Hour)
	inUse := map[string]bool{}
	for _, link := range []string{"submit-ios", "submit-ios.ph", "submit-ios.pl"} {
		target, err := os.Readlink(filepath.Join(s.mount, "3fs-virt/iovs", link))
		if err != nil {
			t.Fatal(err)
		}
		inUse[target] = true
	}
	id := wire.NewUUID().String()
	unused := []string{filepath.Join(shm.Dir, "sem."+ringserver.SemPrefix+id), filepath.Join(shm.Dir, "hf3fs-iov-"+id)}
	for _, path := range unused {
		if err := os.WriteFile(path, make([]byte, 32), 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
	}
	for path := range inUse {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range unused {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	r, _ := runDoctor(t, bin, "--mount", s.mount, "--fix")
	if f := finding(t, r, "shm.leftovers"); f.Status != doctor.OK || !strings.Contains(f.Found, "hf3fs-iov-"+id) {
		t.Errorf("%+v", f)
	}
	for _, path := range unused {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	for path := range inUse {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if r, _ := runDoctor(t, bin, "--mount", s.mount); finding(t, r, "ring").Status != doctor.OK {
		t.Errorf("after the fix: %+v", finding(t, r, "ring"))
	}
}

// A wrong command line exits with status 2 and without a report.
func TestDoctorUsage(t *testing.T) {
	for _, args := range [][]string{
		{"--engine", "vlm"}, {"--engine-config", "x"}, {"--tp", "4"}, {"--engine", "vllm", "--model", "no-such-model"}, {"--engine", "vllm", "--tp", "-1"},
	} {
		var out, errs bytes.Buffer
		if status := run(append([]string{"doctor"}, args...), &out, &errs); status != exitUsage || errs.Len() == 0 || strings.Contains(out.String(), "kernel") {
			t.Errorf("%q: %d, %s", args, status, errs.String())
		}
	}
}

// The doctor examines the etcd that hosts share, with certificates and a user, and says which member is gone.
func TestDoctorEtcd(t *testing.T) {
	bin := binary(t)
	members := etcd.Start(t, etcd.Options{TLS: true, Password: "root's"})
	members.AddUser("kv3fs", "a word", "/kv3fs/s")
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("a word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := members.Files()
	args := []string{
		"--pages-store", "etcd://" + strings.Join(members.Endpoints(), ",") + "/kv3fs/s", "--pages-store-ca", f.CA, "--pages-store-cert", f.Cert, "--pages-store-key", f.Key,
		"--pages-store-user", "kv3fs", "--pages-store-password-file", password,
	}
	// Members may elect a leader meanwhile, and take long to answer on a busy machine.
	await := func(id, says string) {
		t.Helper()
		for deadline := time.Now().Add(clusterPatience); ; {
			r, _ := runDoctor(t, bin, args...)
			for _, f := range r.Findings {
				if f.ID == id && strings.Contains(f.Found, says) {
					return
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("no finding %s with %q: %+v", id, says, r.Findings)
			}
		}
	}
	await("etcd", "all 3 members answer")
	await("etcd.version", "etcd 3.")
	await("etcd.space", "of data")
	follower := (members.Leader() + 1) % 3
	members.Kill(follower)
	await("etcd", "2 of 3 members answer; "+members.Endpoints()[follower])
	if out, err := exec.Command(bin, "doctor", "--pages-store-ca", f.CA).CombinedOutput(); err == nil || !strings.Contains(string(out), "need --pages-store etcd://") {
		t.Errorf("certificates without a store: %v %s", err, out)
	}
}
