package hostile

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// The environment of a process that runs a program.
const (
	programEnv = "KV3FS_HOSTILE_PROGRAM"
	argsEnv    = "KV3FS_HOSTILE_ARGS"
)

// Program is what another user runs. Its error ends the process with status 1 and is part
// of what Process.Stop returns.
type Program func(s *Self) error

// Main runs the program that Start has named, or else the tests of the package as
// daemontest.Main does. It returns the status to exit with.
func Main(m *testing.M, programs map[string]Program) int {
	name := os.Getenv(programEnv)
	if name == "" {
		return daemontest.Main(m)
	}
	program := programs[name]
	if program == nil {
		fmt.Fprintf(os.Stderr, "there is no program %q\n", name)
		return 2
	}
	s := &Self{out: bufio.NewWriter(os.Stdout), stopped: make(chan struct{})}
	go s.watch()
	if err := program(s); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	return 0
}

// Self is what a running program knows of its test.
type Self struct {
	mu      sync.Mutex
	out     *bufio.Writer
	stopped chan struct{}
}

// watch waits for the end of standard input: Process.Stop closes it, and so does the death
// of the test.
func (s *Self) watch() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	close(s.stopped)
	time.Sleep(2 * Patience) // the test kills the process before
	_ = syscall.Kill(0, syscall.SIGKILL)
}

// Args decodes what the test has passed to Start.
func (s *Self) Args(v any) error { return json.Unmarshal([]byte(os.Getenv(argsEnv)), v) }

// Report sends a value to the test, whose Await returns it.
func (s *Self) Report(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.out.Write(append(text, '\n'))
	return errors.Join(err, s.out.Flush())
}

// Command returns a command, not started, that runs another program of the table as this
// user, in this process's group.
func (s *Self) Command(program string, args any) (*exec.Cmd, error) {
	encoded, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), programEnv+"="+program, argsEnv+"="+string(encoded))
	return cmd, nil
}

// Stopped returns a channel that is closed when the test calls Stop or dies.
func (s *Self) Stopped() <-chan struct{} { return s.stopped }

// Running reports whether Stopped is still open, for a program's loop.
func (s *Self) Running() bool {
	select {
	case <-s.stopped:
		return false
	default:
		return true
	}
}
