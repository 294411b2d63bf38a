package doctor

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// errNoAnswer is the error of a program that did not finish in time.
var errNoAnswer = errors.New("no answer in time")

const (
	// killGrace is how long a killed process may take to end. A process that waits
	// in the kernel for a FUSE daemon or a disk does not end before that answers.
	killGrace = 500 * time.Millisecond
	// commandTimeout is for programs such as Python, which may start from a cold disk.
	commandTimeout = 10 * time.Second
)

// output runs a program and returns its standard output. Whatever the program does,
// output returns within limit plus killGrace. If the program takes longer than limit,
// output kills it and returns errNoAnswer. If the kernel cannot kill it, it is left
// behind with the goroutine that waits for it; both end once the disk or daemon answers.
func output(ctx context.Context, limit time.Duration, argv ...string) ([]byte, error) {
	return outputOf(ctx, limit, exec.Command(argv[0], argv[1:]...))
}

// outputOf is output for a command that was not started.
func outputOf(ctx context.Context, limit time.Duration, cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = killGrace // for grandchildren that keep the pipes open
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var err error // of the program, once it has ended
	ended := make(chan struct{})
	go func() {
		err = cmd.Wait()
		close(ended)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var cause error
	select {
	case <-ended:
		if err != nil {
			if line := lastLine(stderr.String()); line != "" {
				err = fmt.Errorf("%w: %s", err, line)
			}
		}
		return stdout.Bytes(), err
	case <-timer.C:
		cause = fmt.Errorf("%w (%v)", errNoAnswer, limit)
	case <-ctx.Done():
		cause = ctx.Err()
	}
	cmd.Process.Kill()
	select {
	case <-ended:
	case <-time.After(killGrace):
	}
	return nil, cause
}

// lastLine returns the last line of a program's error output, which usually states the
// error.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// runProbe runs a probe in its own process and decodes its answer.
func runProbe[T any](ctx context.Context, o *Options, limit time.Duration, args ...string) (answer T, err error) {
	return runProbeAs[T](ctx, o, limit, nil, args...)
}

// runProbeAs is runProbe in a process with these attributes.
func runProbeAs[T any](ctx context.Context, o *Options, limit time.Duration, as *syscall.SysProcAttr, args ...string) (answer T, err error) {
	cmd := exec.Command(o.Probe[0], append(o.Probe[1:len(o.Probe):len(o.Probe)], args...)...)
	cmd.SysProcAttr = as
	text, err := outputOf(ctx, limit, cmd)
	if err != nil {
		return answer, err
	}
	if err := gob.NewDecoder(bytes.NewReader(text)).Decode(&answer); err != nil {
		return answer, fmt.Errorf("probe %s: %w", args[0], err)
	}
	return answer, nil
}
