package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
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
