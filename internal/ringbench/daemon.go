package ringbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/usrbio"
)

const (
	startLimit = 15 * time.Second
	stopLimit  = 15 * time.Second
)

// daemon is a `kv3fs serve` that was started for the bench.
type daemon struct {
	scratch     string
	data, mount string
	cmd         *exec.Cmd
	output      output
	ended       chan struct{} // closed when the process is gone
	err         error         // of the process; read after ended
	told        bool          // its end has been reported
}

// startDaemon starts binary as a daemon in a new directory below scratch, and
// returns when its mount works.
func startDaemon(ctx context.Context, binary, scratch, mode string) (*daemon, error) {
	if scratch == "" {
		scratch = os.TempDir()
	}
	dir, err := os.MkdirTemp(scratch, "kv3fs-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: scratch directory: %w", err)
	}
	d := &daemon{
		scratch: dir, data: filepath.Join(dir, "data"), mount: filepath.Join(dir, "mount"),
		ended: make(chan struct{}),
	}
	d.cmd = exec.Command(binary, "serve", "--data", d.data, "--mount", d.mount, "--io", mode)
	d.cmd.Stdout, d.cmd.Stderr = &d.output, &d.output
	// Not in our process group: an interrupt at the terminal is for the bench,
	// which then stops the daemon in its turn. The daemon goes when we are killed.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is about this thread, which must stay
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		started <- err
		if err == nil {
			d.err = d.cmd.Wait()
			close(d.ended)
		}
	}()
	if err := <-started; err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("bench: start %s: %w", binary, err)
	}
	if err := d.awaitMount(ctx); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

func (d *daemon) awaitMount(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		m, err := usrbio.Open(d.mount)
		if err == nil {
			return m.Close()
		}
		select {
		case <-d.ended:
			d.told = true
			return fmt.Errorf("bench: the daemon ended at once (%w); it said:\n%s", exitText(d.err), d.output.tail())
		case <-ctx.Done():
			return fmt.Errorf("bench: the daemon has no mount after %v (%w); it said:\n%s", startLimit, err, d.output.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func exitText(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// stop stops the daemon and removes its directory.
func (d *daemon) stop() error {
	d.cmd.Process.Signal(syscall.SIGTERM)
	var err error
	select {
	case <-d.ended:
		if d.err != nil && !d.told {
			err = fmt.Errorf("bench: the daemon ended badly (%w); it said:\n%s", d.err, d.output.tail())
		}
	case <-time.After(stopLimit):
		d.cmd.Process.Kill()
		<-d.ended
		err = fmt.Errorf("bench: the daemon did not stop within %v and was killed; it said:\n%s", stopLimit, d.output.tail())
	}
	if e := unmountLeftover(d.mount); e != nil {
		return errors.Join(err, e) // and keep the directory: what is mounted there is not ours to remove
	}
	return errors.Join(err, os.RemoveAll(d.scratch))
}

// unmountLeftover takes away the mount of a daemon that could not.
func unmountLeftover(point string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || !strings.Contains(string(mounts), " "+point+" ") {
		return nil
	}
	if unix.Unmount(point, unix.MNT_DETACH) == nil {
		return nil
	}
	if out, err := exec.Command("fusermount3", "-uz", point).CombinedOutput(); err != nil {
		return fmt.Errorf("bench: %s is still mounted, `fusermount3 -uz` it: %s", point, bytes.TrimSpace(out))
	}
	return nil
}

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

// tail is the last lines of it.
func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(o.b)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
