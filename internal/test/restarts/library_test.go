package restarts

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// library is a client by the C library, which clients/c/tests/usrbio_tool.c drives.
type library struct {
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *bufio.Reader
	progress chan struct{} // a value for each round
}

var libraryTool = sync.OnceValues(func() (string, error) {
	dir, err := daemontest.RunDir()
	if err != nil {
		return "", err
	}
	build := filepath.Join(dir, "c")
	if out, err := exec.Command("make", "-s", "-C", "../../../clients/c", "BUILD="+build, "tools").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the C client: %w\n%s", err, out)
	}
	return filepath.Join(build, "usrbio_tool"), nil
})

func newLibrary(t *testing.T, mount string) *library {
	t.Helper()
	path, err := libraryTool()
	if err != nil {
		t.Fatal(err)
	}
	l := &library{cmd: exec.Command(path), progress: make(chan struct{}, 1)}
	l.cmd.Env = append(os.Environ(), "HF3FS_USRBIO_LIB_LOG=FATAL")
	l.cmd.Stderr = os.Stderr
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.out = bufio.NewReader(out)
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill()
		_ = l.cmd.Wait()
	})
	if err := l.all([]string{
		fmt.Sprintf("open f %s rdwr,creat", filepath.Join(mount, "library")),
		"reg f",
		fmt.Sprintf("iovcreate v %s %d 0 -1", mount, 2*libraryBytes),
		fmt.Sprintf("iorcreate r %s 16 r 0 -1", mount),
		fmt.Sprintf("iorcreate w %s 16 w 0 -1", mount),
	}); err != nil {
		t.Fatal(err)
	}
	return l
}

const libraryBytes = 128 << 10

// ask sends a command, and wants an answer that begins and ends so.
func (l *library) ask(line, begins, ends string) error {
	if _, err := fmt.Fprintln(l.in, line); err != nil {
		return fmt.Errorf("%s: %w", line, err)
	}
	answer, err := l.out.ReadString('\n')
	answer = strings.TrimSuffix(answer, "\n")
	if err == nil && !(strings.HasPrefix(answer, begins) && strings.HasSuffix(answer, ends)) {
		err = fmt.Errorf("%q, not %q...%q", answer, begins, ends)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", line, err)
	}
	return nil
}

func (l *library) all(lines []string) error {
	for _, line := range lines {
		if err := l.ask(line, "ok", ""); err != nil {
			return err
		}
	}
	return nil
}

// round writes a block by one ring, reads it by another one and compares.
func (l *library) round(n int) error {
	at := n % 16 * libraryBytes
	done := fmt.Sprintf(":%d:%d", libraryBytes, n)
	for _, step := range []struct{ line, begins, ends string }{
		{fmt.Sprintf("fill v 0 %d %d", libraryBytes, n), "ok", ""},
		{fmt.Sprintf("prep w v w 0 f %d %d %d", at, libraryBytes, n), "ok", ""},
		{"submit w", "ok", ""},
		{"wait w 1 1 inf", "ok n=1 ", done},
		{fmt.Sprintf("zero v %d %d", libraryBytes, libraryBytes), "ok", ""},
		{fmt.Sprintf("prep r v r %d f %d %d %d", libraryBytes, at, libraryBytes, n), "ok", ""},
		{"submit r", "ok", ""},
		{"wait r 1 1 inf", "ok n=1 ", done},
		{fmt.Sprintf("check v %d %d %d", libraryBytes, libraryBytes, n), "ok", ""},
		{"wait r 1 0 past", "ok n=0", ""}, // no request has two completions
		{"wait w 1 0 past", "ok n=0", ""},
	} {
		if err := l.ask(step.line, step.begins, step.ends); err != nil {
			return fmt.Errorf("the C library, round %d: %w", n, err)
		}
	}
	return nil
}

// runUntil does rounds until stop is closed.
func (l *library) runUntil(stop <-chan struct{}) error {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return l.all([]string{"iordestroy r", "iordestroy w", "iovdestroy v", "close f"})
		default:
		}
		if err := l.round(n); err != nil {
			return err
		}
		select {
		case l.progress <- struct{}{}:
		default:
		}
	}
}
