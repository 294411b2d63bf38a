package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/gdamore/tcell/v3/vt"
	"golang.org/x/sys/unix"
)

// console is a terminal with a program on it.
type console struct {
	t    *testing.T
	file *os.File
	size pty.Winsize
	mu   sync.Mutex
	said []byte
	done chan struct{} // closed when the program has ended
}

func openConsole(t *testing.T, size pty.Winsize, cmd *exec.Cmd) *console {
	t.Helper()
	file, err := pty.StartWithSize(cmd, &size)
	if err != nil {
		t.Fatal(err)
	}
	c := &console{t: t, file: file, size: size, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		some := make([]byte, 4096)
		for {
			n, err := file.Read(some)
			c.mu.Lock()
			c.said = append(c.said, some[:n]...)
			c.mu.Unlock()
			if err != nil { // EIO: the program has ended
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-c.done
		file.Close()
	})
	return c
}

// raw returns what the program has written.
func (c *console) raw() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.said)
}

// text returns what a terminal shows of that.
func (c *console) text() string {
	screen := vt.NewMockTerm(vt.MockOptSize{X: vt.Col(c.size.Cols), Y: vt.Row(c.size.Rows)})
	if err := screen.Start(); err != nil {
		c.t.Fatal(err)
	}
	defer screen.Stop()
	if _, err := screen.Write([]byte(c.raw())); err != nil {
		c.t.Fatal(err)
	}
	var b strings.Builder
	for y := range vt.Row(c.size.Rows) {
		for x := range vt.Col(c.size.Cols) {
			b.WriteString(screen.GetCell(vt.Coord{X: x, Y: y}).C)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// await waits until all of these are shown.
func (c *console) await(want ...string) {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		text := c.text()
		missing := ""
		for _, w := range want {
			if !strings.Contains(text, w) {
				missing = w
			}
		}
		switch {
		case missing == "":
			return
		case time.Now().After(end):
			c.t.Fatalf("no %q in\n%s", missing, text)
		}
	}
}

func (c *console) press(keys string) {
	c.t.Helper()
	if _, err := c.file.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

// In a terminal, top shows the parts by keys and what clients named as text, obeys a new size and NO_COLOR, goes on while the daemon is away, and
// leaves the terminal as it was.
func TestTop(t *testing.T) {
	o := operate(t, "--capacity", "1G")
	const hostile = "\x1b]0;owned\a\x1b[2Jname"
	o.write("models/"+hostile+"/x", 5000)
	cmd := exec.Command(o.bin, "top", "--every", "100ms", o.Mount)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "NO_COLOR=1")
	c := openConsole(t, pty.Winsize{Rows: 24, Cols: 200}, cmd) // the path of the data directory may be long
	was, err := unix.IoctlGetTermios(int(c.file.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	c.await("kv3fs", "1Overview", "q quit", "read p99", o.Data)
	c.press("\t")
	c.await("holds", "unknown")
	c.press("3")
	c.await("directory", `\x1b]0;owned\a\x1b[2Jname`)
	c.press("\x1b[D") // left
	c.await("holds")
	c.size = pty.Winsize{Rows: 8, Cols: 40}
	if err := pty.Setsize(c.file, &c.size); err != nil {
		t.Fatal(err)
	}
	c.press("3")
	c.await("part", "%", "q quit")
	o.Kill()
	c.await("no answer")
	o.Start(t)
	c.await("q quit")
	c.press("q")
	<-c.done
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if raw := c.raw(); strings.Contains(raw, "\x1b]0;owned") || strings.Contains(raw, "\x1b[31m") || strings.Contains(raw, "\x1b[38;") {
		t.Errorf("%q", raw)
	}
	is, err := unix.IoctlGetTermios(int(c.file.Fd()), unix.TCGETS)
	if err != nil || is.Lflag&unix.ECHO != was.Lflag&unix.ECHO && was.Lflag&unix.ECHO != 0 || is.Lflag&unix.ICANON == 0 {
		t.Errorf("the terminal is left with %+v, %v", is, err)
	}
}

// Without a terminal, top prints all parts, or what the API says; it refuses to stream, and names the way out.
func TestTopOnce(t *testing.T) {
	o := operate(t, "--capacity", "1G")
	o.write("models/x", 5000)
	text := o.run("top", "--once", o.Mount)
	for _, want := range []string{"kv3fs ", "== Overview", "== Log", "models", "serving"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	out, errs, status := o.try("/", "top", "--once", "--json", o.Data)
	var is struct {
		Status struct{ PID int }
		Usage  struct{ Files int }
	}
	if err := json.Unmarshal([]byte(out), &is); err != nil || status != 0 || is.Status.PID != o.PID() || is.Usage.Files != 1 {
		t.Errorf("status %d: %v: %s%s", status, err, out, errs)
	}
	checkJSON(t, "top", out)
	if _, errs, status := o.try("/", "top", "--json", o.Mount); status != exitUsage || !strings.Contains(errs, "--once") {
		t.Errorf("status %d: %s", status, errs)
	}
	cmd := exec.Command(o.bin, "top", o.Mount)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true} // without a terminal
	var said bytes.Buffer
	cmd.Stderr = &said
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != exitFailed || !strings.Contains(said.String(), "--once") {
		t.Errorf("%v: %s", err, said.String())
	}
}
