package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

// A command that is stuck in a system call, here opening a pipe without a writer, ends
// soon after the first signal.
func TestInterruptStuck(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a timeout")
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary(t), "serve", "--config", pipe)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer killer.Stop()
	time.Sleep(time.Second) // until it waits at the pipe
	began := time.Now()
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Wait()
	if took := time.Since(began); took > abandonAfter+5*time.Second || cmd.ProcessState.ExitCode() != exitInterrupted {
		t.Errorf("%v after %v", cmd.ProcessState, took)
	}
}

// timeout(1) signals the process and then its group; both count as one request to stop.
func TestOneStopInTwoSignals(t *testing.T) {
	ctx, stop := untilSignalled(newTeller(io.Discard))
	defer stop()
	for range 5 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the context did not end")
	}
}
