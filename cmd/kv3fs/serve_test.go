package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A daemon whose standard error was closed, as happens when a benchmark is killed, still
// unmounts.
func TestServeUnmountsWithoutStderr(t *testing.T) {
	skipWithoutFUSE(t)
	point := filepath.Join(t.TempDir(), "mnt")
	cmd := exec.Command(binary(t), "serve", "--data", t.TempDir(), "--mount", point)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(point, syscall.MNT_DETACH)
	killer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer killer.Stop()
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.Contains(lines.Text(), "serving") {
	}
	stderr.Close()
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), " "+point+" ") {
		t.Errorf("the mount is left behind: %v", err)
	}
}
