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

// A daemon whose words nobody reads any more, as one of a bench that was killed, takes
// its mount away all the same.
func TestServeOutlivesItsReader(t *testing.T) {
	skipWithoutFUSE(t)
	point := filepath.Join(t.TempDir(), "mnt")
	cmd := exec.Command(buildBinary(t), "serve", "--data", t.TempDir(), "--mount", point)
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
	said := bufio.NewScanner(stderr)
	for said.Scan() && !strings.Contains(said.Text(), "serving") {
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
