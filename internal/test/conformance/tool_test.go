package conformance

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// tool is a process that uses the C library and reads its commands line by line (see
// clients/c/tests/usrbio_tool.c).
type tool struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	made  []string // shared memory objects, which a killed process leaves behind
}

// answer is the reply to a command.
type answer struct {
	line string
	code int // 0: ok; else exactly what the library returned
	kv   map[string]string
	rest []string // words without an equals sign
}

// newTool starts a tool as uid. wrap, if not empty, is a shell command that ends
// with exec "$0" and runs in a mount namespace of its own.
func newTool(t *testing.T, uid uint32, wrap string, env ...string) *tool {
	t.Helper()
	path := usrbioTool(t)
	var cmd *exec.Cmd
	if wrap == "" {
		cmd = exec.Command(path)
	} else {
		cmd = exec.Command("/bin/sh", "-ec", wrap, path)
	}
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if uid != uint32(os.Getuid()) {
		daemontest.NeedRoot(t)
		cmd.SysProcAttr = asUser(uid)
	}
	if wrap != "" {
		daemontest.NeedRoot(t)
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	return startTool(t, cmd)
}

func startTool(t *testing.T, cmd *exec.Cmd) *tool {
	t.Helper()
	cmd.Dir = "/"
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "HF3FS_USRBIO_LIB_LOG=FATAL")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	c := &tool{t: t, cmd: cmd, in: in, lines: make(chan string, 16)}
	go func() {
		defer close(c.lines)
		r := bufio.NewReaderSize(out, 1<<20)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			c.lines <- strings.TrimSuffix(line, "\n")
		}
	}()
	t.Cleanup(c.end)
	return c
}

func (w *world) tool(t *testing.T) *tool { return newTool(t, uint32(os.Getuid()), "") }

func (w *world) toolAs(t *testing.T, uid uint32) *tool {
	t.Helper()
	if !w.PrivateMount {
		return newTool(t, uid, "")
	}
	id := strconv.Itoa(int(uid))
	pid := strconv.Itoa(w.PID())
	return startTool(t, exec.Command("nsenter", "-t", pid, "-m", "-S", id, "-G", id, usrbioTool(t)))
}

// end closes the script and waits for the process.
func (c *tool) end() {
	c.in.Close()
	timer := time.AfterFunc(patience, func() { c.cmd.Process.Kill() })
	defer timer.Stop()
	for range c.lines {
	}
	c.cmd.Wait()
	for _, path := range c.made {
		os.Remove(path)
	}
}

// die kills the process with SIGKILL and waits until it has exited.
func (c *tool) die() {
	c.t.Helper()
	must(c.t, c.cmd.Process.Kill())
	c.end()
}

func (c *tool) send(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.in, format+"\n", args...); err != nil {
		c.t.Fatalf("usrbio_tool exited before %q: %v", fmt.Sprintf(format, args...), err)
	}
}

func (c *tool) receive(what string) answer {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok {
			c.t.Fatalf("usrbio_tool died at %q: %v", what, c.cmd.Wait())
		}
		return parseAnswer(c.t, line)
	case <-time.After(2 * patience):
		c.cmd.Process.Kill()
		c.t.Fatalf("usrbio_tool hangs at %q", what)
	}
	panic("unreachable")
}

func parseAnswer(t *testing.T, line string) answer {
	t.Helper()
	a := answer{line: line, kv: map[string]string{}}
	words := strings.Fields(line)
	switch {
	case len(words) > 0 && words[0] == "ok":
		words = words[1:]
	case len(words) > 1 && words[0] == "err":
		code, err := strconv.Atoi(words[1])
		must(t, err)
		a.code, words = code, words[2:]
	default:
		t.Fatalf("usrbio_tool said %q", line)
	}
	for _, word := range words {
		if k, v, ok := strings.Cut(word, "="); ok {
			a.kv[k] = v
		} else {
			a.rest = append(a.rest, word)
		}
	}
	return a
}

// do runs one command, which may fail.
func (c *tool) do(format string, args ...any) answer {
	c.t.Helper()
	c.send(format, args...)
	command := fmt.Sprintf(format, args...)
	a := c.receive(command)
	words := strings.Fields(strings.TrimPrefix(command, "thread "))
	if a.code == 0 && words[0] == "iovcreate" { // NAME MOUNT SIZE BLOCK NUMA
		link := words[2] + "/3fs-virt/iovs/" + a.kv["uuid"]
		if words[4] != "0" {
			link += ".b" + words[4]
		}
		c.made = append(c.made, c.do("readlink %s", link).kv["target"])
	}
	return a
}

// ok runs a command that must succeed.
func (c *tool) ok(format string, args ...any) answer {
	c.t.Helper()
	a := c.do(format, args...)
	if a.code != 0 {
		c.t.Fatalf("%s: %s", fmt.Sprintf(format, args...), a.line)
	}
	return a
}

// fails runs a command that must fail with want, including its sign.
func (c *tool) fails(want int, format string, args ...any) {
	c.t.Helper()
	if a := c.do(format, args...); a.code != want {
		c.t.Errorf("%s: %s, want err %d", fmt.Sprintf(format, args...), a.line, want)
	}
}

func (a answer) num(t *testing.T, key string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(a.kv[key], 0, 64)
	if err != nil {
		u, uerr := strconv.ParseUint(a.kv[key], 0, 64)
		if uerr != nil {
			t.Fatalf("%q in %q: %v", key, a.line, err)
		}
		n = int64(u)
	}
	return n
}

// cqes reads the completions of wait and raw_reap.
func (a answer) cqes(t *testing.T) []cqe {
	t.Helper()
	var all []cqe
	for _, word := range a.rest {
		var c cqe
		if _, err := fmt.Sscanf(word, "%d:%d:%d", &c.index, &c.result, &c.userdata); err != nil {
			t.Fatalf("%q: %v", word, err)
		}
		all = append(all, c)
	}
	if int64(len(all)) != a.num(t, "n") {
		t.Fatalf("%q", a.line)
	}
	return all
}
