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
	ended  chan struct{} // closed when the process is gone
	err    error         // of the process; read after ended
}

// StartChild starts a program. It goes when this process is killed.
func StartChild(program string, args ...string) (*Child, error) {
	c := &Child{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	// Not in our process group: an interrupt at the terminal is for the bench,
	// which then stops the child in its turn.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is about this thread, which must stay
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

// PID is its process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Ended is closed when the process is gone.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// Fate says how a process that has ended did so, and its last words.
func (c *Child) Fate() error {
	<-c.ended
	err := c.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%w; it said:\n%s", err, c.LastWords())
}

// Stop asks the process to end and kills it if it has not within the limit. A
// process that had to be killed, or ended badly, is an error.
func (c *Child) Stop(limit time.Duration) error {
	c.cmd.Process.Signal(syscall.SIGTERM)
	killer := time.AfterFunc(limit, func() { c.cmd.Process.Kill() })
	<-c.ended
	if !killer.Stop() {
		return fmt.Errorf("did not stop within %v and was killed; it said:\n%s", limit, c.LastWords())
	}
	if c.err != nil {
		return c.Fate()
	}
	return nil
}

// Kill ends the process at once, as a crash would.
func (c *Child) Kill() {
	c.cmd.Process.Kill()
	<-c.ended
}

// LastWords are the last lines that it printed.
func (c *Child) LastWords() string { return c.output.tail() }

// output keeps what a process prints.
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
