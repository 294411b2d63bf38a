package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// Patience bounds every wait for a process. It is long, since machines of CI are slow.
const Patience = 60 * time.Second

// Process is a program that runs as another user.
type Process struct {
	User User

	t       testing.TB
	program string
	cmd     *exec.Cmd
	in      closer
	out     reports
	stderr  text
	ended   chan struct{} // closed when it has exited
	err     error         // of cmd.Wait; valid once ended is closed
}

type closer interface{ Close() error }

// Start runs a program of Main's table as u, with args in JSON. The end of the test kills it.
func Start(t testing.TB, u User, program string, args any) *Process {
	t.Helper()
	daemontest.NeedRoot(t)
	encoded, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := self()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{User: u, t: t, program: program, ended: make(chan struct{}), out: reports{more: make(chan struct{}, 1)}}
	p.cmd = exec.Command(binary)
	p.cmd.Dir = "/"
	p.cmd.Env = append(os.Environ(), programEnv+"="+program, argsEnv+"="+string(encoded))
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.stderr
	p.cmd.WaitDelay = time.Second // children that the program has left may hold its pipes
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: u.ID, Gid: u.ID, Groups: u.Groups}}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() && p.stderr.String() != "" {
			t.Logf("%s of user %d printed:\n%s", program, u.ID, p.stderr.String())
		}
	})
	return p
}

// Run runs a program to its end and decodes its report, if result is not nil. An error of
// the program fails the test.
func Run(t testing.TB, u User, program string, args, result any) {
	t.Helper()
	p := Start(t, u, program, args)
	if result != nil {
		p.Await(result)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
}

// Await decodes the next report. It fails the test if the program ends without one.
func (p *Process) Await(v any) {
	p.t.Helper()
	if err := p.Next(v, Patience); err != nil {
		p.t.Fatal(err)
	}
}

// Next decodes the next report; without one within the limit it returns an error.
func (p *Process) Next(v any, limit time.Duration) error {
	timeout := time.After(limit)
	for ended := false; ; {
		if line, ok := p.out.next(); ok {
			return json.Unmarshal(line, v)
		}
		if ended {
			return fmt.Errorf("%s of user %d ended without a report: %v\n%s", p.program, p.User.ID, p.err, p.stderr.String())
		}
		select {
		case <-p.out.more:
		case <-p.ended:
			ended = true
		case <-timeout:
			return fmt.Errorf("%s of user %d reports nothing for %v\n%s", p.program, p.User.ID, limit, p.stderr.String())
		}
	}
}

// Stop tells the program to stop, waits until it has exited and returns its error. One that
// does not stop is killed, which is an error, too.
func (p *Process) Stop() error {
	_ = p.in.Close() // it may have exited
	select {
	case <-p.ended:
	case <-time.After(Patience):
		p.Kill()
		return fmt.Errorf("%s of user %d does not stop within %v\n%s", p.program, p.User.ID, Patience, p.stderr.String())
	}
	p.killGroup()
	if p.err != nil {
		return fmt.Errorf("%s of user %d: %w\n%s", p.program, p.User.ID, p.err, p.stderr.String())
	}
	return nil
}

// Kill ends the program and its children with SIGKILL and waits until it has exited. It
// fails the test if the kernel keeps it.
func (p *Process) Kill() {
	p.killGroup()
	select {
	case <-p.ended:
	case <-time.After(Patience):
		p.t.Errorf("%s of user %d has not ended %v after SIGKILL", p.program, p.User.ID, Patience)
	}
}

func (p *Process) killGroup() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// Ended returns a channel that is closed when the program has exited.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// PID returns the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// reports collects lines of standard output.
type reports struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{} // has one element if something was written since
}

func (r *reports) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
	return r.buf.Write(b)
}

// next returns the next whole line.
func (r *reports) next() ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !bytes.Contains(r.buf.Bytes(), []byte("\n")) {
		return nil, false
	}
	line, _ := r.buf.ReadBytes('\n')
	return line, true
}

// text collects standard error.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (w *text) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(b)
}

func (w *text) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// self returns the path of a copy of this test binary that every user can run.
var self = sync.OnceValues(func() (string, error) {
	dir, err := daemontest.RunDir()
	if err != nil {
		return "", err
	}
	path := dir + "/self.test"
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, text, 0o755); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o755) // whatever the umask
})
