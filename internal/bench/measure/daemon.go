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

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/usrbio"
)

// Daemon is a "kv3fs serve" that was started for a benchmark, in a directory of its own.
type Daemon struct {
	Data, Mount string

	service
	scratch string
	socket  string // of its page service, in a directory of its own; "": it has none
}

// StartDaemon starts binary as a daemon in a new directory below scratch, by default the
// system's directory for temporary files, and returns when its mount works. mode is its
// --io, and flags are further ones. It has no page service, because engines on this machine may look for that port.
func StartDaemon(ctx context.Context, binary, scratch, mode string, flags ...string) (*Daemon, error) {
	return startDaemon(ctx, binary, scratch, mode, "off", flags)
}

func startDaemon(ctx context.Context, binary, scratch, mode, pagesListen string, flags []string) (*Daemon, error) {
	dir, err := NewScratch(scratch)
	if err != nil {
		return nil, err
	}
	d := &Daemon{scratch: dir, Data: filepath.Join(dir, "data"), Mount: filepath.Join(dir, "mount")}
	if d.process, err = StartChild(binary, append([]string{"serve", "--data", d.Data, "--mount", d.Mount, "--io", mode, "--pages-listen", pagesListen, "--admin-listen", "off"}, flags...)...); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("bench: %w", err)
	}
	err = d.await(ctx, "mount", func() error {
		m, err := usrbio.Open(ctx, d.Mount)
		if err != nil {
			return err
		}
		return m.Close(ctx)
	})
	if err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

// Stop stops the daemon, unmounts what it left and removes its directory.
func (d *Daemon) Stop() error {
	err := d.stop()
	if e := unmountLeftover(d.Mount); e != nil {
		return errors.Join(err, e) // and keep the directory: something is still mounted there
	}
	if d.socket != "" {
		err = errors.Join(err, os.RemoveAll(filepath.Dir(d.socket)))
	}
	return errors.Join(err, os.RemoveAll(d.scratch))
}

// unmountLeftover removes the mount of a daemon that could not do so.
func unmountLeftover(point string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || !strings.Contains(string(mounts), " "+point+" ") {
		return nil
	}
	if unix.Unmount(point, unix.MNT_DETACH) == nil {
		return nil
	}
	if out, err := exec.Command("fusermount3", "-uz", point).CombinedOutput(); err != nil {
		return fmt.Errorf("bench: %s is still mounted: %s; unmount it with `fusermount3 -uz %s`", point, bytes.TrimSpace(out), point)
	}
	return nil
}
