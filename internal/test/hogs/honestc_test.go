package hogs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tool is a session through the C library, which clients/c/tests/usrbio_tool.c drives. The
// tool has a content of its own by seed, and checks it.
type tool struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	ms  int64 // the limit of one wait
}

func connectTool(a honest) (session, error) {
	t := &tool{cmd: exec.Command(a.Tool), ms: a.Limit.Milliseconds()}
	t.cmd.Env = append(os.Environ(), "HF3FS_USRBIO_LIB_LOG=FATAL")
	t.cmd.Stderr = os.Stderr
	var err error
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.out = bufio.NewReader(out)
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	for _, line := range []string{
		fmt.Sprintf("open f %s rdwr,creat", filepath.Join(a.Dir, "c")),
		"reg f",
		fmt.Sprintf("iovcreate v %s %d 0 -1", a.Mount, 2*writeBytes),
		fmt.Sprintf("iorcreate r %s 16 r 0 -1", a.Mount),
		fmt.Sprintf("iorcreate w %s 16 w 0 -1", a.Mount),
	} {
		if err := t.ok(line); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return t, nil
}

// query sends a command and returns the answer.
func (t *tool) query(line string) (string, error) {
	if _, err := fmt.Fprintln(t.in, line); err != nil {
		return "", err
	}
	answer, err := t.out.ReadString('\n')
	return strings.TrimSpace(answer), err
}

func (t *tool) ok(line string) error {
	answer, err := t.query(line)
	if err != nil {
		return fmt.Errorf("%s: the C client died: %w", line, err)
	}
	if strings.HasPrefix(line, "check ") && strings.HasPrefix(answer, "err 74 ") {
		return fmt.Errorf("%s: %s: %w", line, answer, wrongByte{})
	}
	if !strings.HasPrefix(answer, "ok") {
		return fmt.Errorf("%s: %s", line, answer)
	}
	return nil
}

func (t *tool) call(n uint64) error {
	at := n % 16 * writeBytes
	for _, line := range []string{
		fmt.Sprintf("fill v 0 %d %d", writeBytes, n),
		fmt.Sprintf("prep w v w 0 f %d %d %d", at, writeBytes, n),
		"submit w",
	} {
		if err := t.ok(line); err != nil {
			return err
		}
	}
	if err := t.wait("w", n); err != nil {
		return err
	}
	for _, line := range []string{
		fmt.Sprintf("zero v %d %d", writeBytes, writeBytes),
		fmt.Sprintf("prep r v r %d f %d %d %d", writeBytes, at, writeBytes, n),
		"submit r",
	} {
		if err := t.ok(line); err != nil {
			return err
		}
	}
	if err := t.wait("r", n); err != nil {
		return err
	}
	return t.ok(fmt.Sprintf("check v %d %d %d", writeBytes, writeBytes, n))
}

// wait wants one completion of all bytes.
func (t *tool) wait(ring string, userdata uint64) error {
	answer, err := t.query(fmt.Sprintf("wait %s 1 1 %d", ring, t.ms))
	if err != nil {
		return fmt.Errorf("wait %s: the C client died: %w", ring, err)
	}
	if !strings.HasPrefix(answer, "ok n=1 ") || !strings.HasSuffix(answer, fmt.Sprintf(":%d:%d", writeBytes, userdata)) {
		return fmt.Errorf("wait %s: %s", ring, answer)
	}
	return nil
}

func (t *tool) close() error {
	for _, line := range []string{"iordestroy r", "iordestroy w", "iovdestroy v"} {
		_, _ = t.query(line) // not all may exist
	}
	_ = t.in.Close() // the end of input ends it
	return t.cmd.Wait()
}
