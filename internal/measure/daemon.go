package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/usrbio"
)

const (
	startLimit = 15 * time.Second
	stopLimit  = 15 * time.Second
)

// Daemon is a `kv3fs serve` that was started for a benchmark, in a directory of its own.
type Daemon struct {
	Data, Mount string

	scratch string
	process *Child
	told    bool // its end has been reported
}

// StartDaemon starts binary as a daemon in a new directory below scratch, or below the
// system's directory for temporary files, and returns when its mount works. mode is
// its --io.
func StartDaemon(ctx context.Context, binary, scratch, mode string) (*Daemon, error) {
	if scratch == "" {
		scratch = os.TempDir()
	}
	dir, err := os.MkdirTemp(scratch, "kv3fs-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: scratch directory: %w", err)
	}
	d := &Daemon{scratch: dir, Data: filepath.Join(dir, "data"), Mount: filepath.Join(dir, "mount")}
	if d.process, err = StartChild(binary, "serve", "--data", d.Data, "--mount", d.Mount, "--io", mode); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("bench: %w", err)
	}
	if err := d.awaitMount(ctx); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

func (d *Daemon) awaitMount(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		m, err := usrbio.Open(d.Mount)
		if err == nil {
			return m.Close()
		}
		select {
		case <-d.process.Ended():
			d.told = true
			return fmt.Errorf("bench: the daemon ended at once: %w", d.process.Fate())
		case <-ctx.Done():
			return fmt.Errorf("bench: the daemon has no mount after %v (%w); it said:\n%s", startLimit, err, d.process.LastWords())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop stops the daemon and removes its directory.
func (d *Daemon) Stop() error {
	err := d.process.Stop(stopLimit)
	switch {
	case d.told:
		err = nil
	case err != nil:
		err = fmt.Errorf("bench: the daemon: %w", err)
	}
	if e := unmountLeftover(d.Mount); e != nil {
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
