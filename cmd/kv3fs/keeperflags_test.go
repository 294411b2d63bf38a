package main

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A capacity that nobody could keep is refused at start, with what is wrong.
func TestCapacityErrors(t *testing.T) {
	for _, c := range []struct{ flags, says string }{
		{"--check --capacity x", "give one such as 10TiB"},
		{"--check --capacity 0", "give at least 1 MiB"},
		{"--check --capacity 4KiB", "give at least 1 MiB"},
		{"--check --capacity 101%", "up to 100%"},
		{"--check --capacity 0%", "above 0%"},
		{"--check --capacity -1TiB", "capacity"},
		{"--check --capacity 1GiB --low-watermark 95", "must be below --high-watermark"},
		{"--check --capacity 1GiB --high-watermark 101", "high-watermark"},
		{"--check --capacity 1GiB --eviction-grace 0s", "eviction-grace"},
		{"--capacity 1EiB", "is more than the file system of"},
		{"--capacity 1GiB --readonly", "read-only"},
	} {
		args := append([]string{"serve", "--pages-listen", "off", "--data", t.TempDir(), "--mount", t.TempDir()}, strings.Fields(c.flags)...)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		cmd := exec.CommandContext(ctx, binary(t), args...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that it unmounts
		out, err := cmd.CombinedOutput()
		cancel()
		if err == nil || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: %v, %s", c.flags, err, out)
		}
	}
}

// Page files cannot go while other hosts have the index, too.
func TestPageFilesNeedTheirIndexHere(t *testing.T) {
	out, err := exec.Command(binary(t), "serve", "--check", "--data", t.TempDir(), "--mount", t.TempDir(), "--capacity", "1GiB",
		"--pages-files", "vllm", "--pages-store", "etcd://127.0.0.1:2379/x", "--pages-peer-listen", "127.0.0.1:0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "does not tell whether another host's engine has one open: leave it out") {
		t.Errorf("%v, %s", err, out)
	}
}
