package measure

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Child is a program that was started for a benchmark.
type Child struct {
	cmd    *exec.Cmd
	output output
	ended  chan struct{} // closed when the process has exited
	err    error         // of the process; read after ended
}

// StartChild starts a program. If this process is killed, the program is terminated.
func StartChild(program string, args ...string) (*Child, error) {
	c := &Child{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	// In a process group of its own: an interrupt at the terminal goes to the bench,
	// which then stops the child.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is sent when this thread exits
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.err = c.cmd.Wait()
			close(c.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return c, nil
}

// PID returns the process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Ended returns a channel that is closed when the process has exited.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// ExitError waits for the end of the process and returns how it ended, with its last output.
func (c *Child) ExitError() error {
	<-c.ended
	err := c.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%w; it said:\n%s", err, c.LastOutput())
}

// Stop asks the process to end and kills it after the limit. It returns an error if the
// process had to be killed or failed.
func (c *Child) Stop(limit time.Duration) error {
	c.cmd.Process.Signal(syscall.SIGTERM)
	killer := time.AfterFunc(limit, func() { c.cmd.Process.Kill() })
	<-c.ended
	if !killer.Stop() {
		return fmt.Errorf("did not stop within %v and was killed; it said:\n%s", limit, c.LastOutput())
	}
	if c.err != nil {
		return c.ExitError()
	}
	return nil
}

// Kill ends the process at once, as a crash would.
func (c *Child) Kill() {
	c.cmd.Process.Kill()
	<-c.ended
}

// LastOutput returns the last lines that the process printed.
func (c *Child) LastOutput() string { return c.output.tail() }

// output keeps the end of what a process prints.
type output struct {
	mu sync.Mutex
	b  []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	const keep = 64 << 10
	o.b = append(o.b, p...)
	o.b = o.b[max(0, len(o.b)-keep):]
	return len(p), nil
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(o.b), []byte("\n"))
	return strings.TrimSpace(string(bytes.Join(lines[max(0, len(lines)-10):], []byte("\n"))))
}
