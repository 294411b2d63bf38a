package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// errHung says that what was asked did not answer in time.
var errHung = errors.New("no answer in time")

const (
	// killGrace is how long a killed process may take to end. One that waits in
	// the kernel for a FUSE daemon or a disk does not end before these answer.
	killGrace = 500 * time.Millisecond
	// commandPatience is for programs of the host, such as a Python that starts
	// from a cold disk.
	commandPatience = 10 * time.Second
)

// output runs a program and returns what it prints. It returns within limit and
// killGrace, whatever the program does: then the error is errHung, and a program
// that the kernel cannot kill is left behind, with the goroutine that waits for
// it. Both are gone when whatever hangs answers.
func output(ctx context.Context, limit time.Duration, argv ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = killGrace // for grandchildren that keep the pipes
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var why error
	select {
	case err := <-ended:
		if err != nil {
			if said := lastLine(stderr.String()); said != "" {
				err = fmt.Errorf("%w: %s", err, said)
			}
		}
		return stdout.Bytes(), err
	case <-timer.C:
		why = fmt.Errorf("%w (%v)", errHung, limit)
	case <-ctx.Done():
		why = ctx.Err()
	}
	cmd.Process.Kill()
	select {
	case <-ended:
	case <-time.After(killGrace):
	}
	return nil, why
}

// lastLine is where programs say what went wrong.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// ask runs a probe and reads its answer.
func ask[T any](ctx context.Context, o *Options, limit time.Duration, args ...string) (answer T, err error) {
	text, err := output(ctx, limit, append(o.Probe[:len(o.Probe):len(o.Probe)], args...)...)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("probe %s: %w", args[0], err)
	}
	return answer, nil
}
