package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
)

// No process but one that was killed and waits for its own mount is taken for such: the connections of others stay.
func TestOnlyStuckDaemonsAreFreed(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("true")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // a zombie
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		var comm, is string
		if n, _ := fmt.Sscan(string(stat), &pid, &comm, &is); n == 3 && is == "Z" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s", stat)
		}
	}
	lock := filepath.Join(t.TempDir(), "lock")
	for _, text := range []string{
		"", "what", fmt.Sprintf("%d on %s\n", os.Getpid(), name), fmt.Sprintf("%d on %s\n", child.Process.Pid, name),
		fmt.Sprintf("%d on elsewhere\n", child.Process.Pid), "999999999 on " + name,
	} {
		if err := os.WriteFile(lock, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if pid, stuck := stuckDaemon(lock); stuck {
			t.Errorf("%q: process %d is taken for a daemon that waits for its mount", text, pid)
		}
	}
}

// What a killed daemon has noted is found whatever the path of the data directory, and is another's where it is not a 3FS at
// the mount point.
func TestMountOfKilledDaemon(t *testing.T) {
	hosts := filepath.Join(t.TempDir(), "da[ta-*?", hostsDir)
	own, other := filepath.Join(hosts, "own"), filepath.Join(hosts, "other")
	for file, text := range map[string]string{
		filepath.Join(own, "lock"): "17 on here\n", mountsFile(own): "last 40\nnow 41\nnow 42\n",
		filepath.Join(other, "lock"): "170 on here\n", mountsFile(other): "now 43\n",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := formerMount{"now", 42}
	if got := notedBy(hosts, 17, "now"); !slices.Equal(got, []formerMount{m}) {
		t.Errorf("noted: %v", got)
	}
	for _, c := range []struct {
		device, kind, point string
		is                  bool
	}{
		{"0:42", "fuse.hf3fs", "/mnt/3fs", true},
		{"0:42", "fuse.sshfs", "/mnt/3fs", false},
		{"0:42", "fuse.hf3fs", "/mnt/other", false},
		{"0:41", "fuse.hf3fs", "/mnt/3fs", false},
	} {
		if got := isAt([]host.Mount{{Device: c.device, Type: c.kind, Point: c.point}}, m, "/mnt/3fs"); got != c.is {
			t.Errorf("%v: %v", c, got)
		}
	}
}
