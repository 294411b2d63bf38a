package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin"
)

// upgradeCmd has a daemon execute another program.
type upgradeCmd struct {
	reloadFlags
	Binary string `arg:"" optional:"" name:"binary" help:"The program. Default: the one at the path that the daemon was started from, as it is there now."`
}

// Help is what "kv3fs upgrade --help" adds to the flags.
func (*upgradeCmd) Help() string {
	return `For example, after a new version was installed:

  kv3fs upgrade

The daemon keeps its process, and the new version goes on where it is: mount, open files, locks, mappings, rings and
addresses. What clients ask meanwhile waits. First the new version looks whether it would take all of this over, with the
daemon's command line and its configuration file as it is now (kv3fs serve --check-state). If not, or if something is
under way that cannot be interrupted, such as a call to a disk that does not answer, the daemon goes on as it is, and the
exit status is 1.

It needs --restart-state auto, or a directory, and Linux 6.9. Going back to the former version is the same: kv3fs upgrade
/path/to/the/former/kv3fs. docs/operations.md`
}

// upgradeReport is what the command prints as JSON.
type upgradeReport struct {
	PID       int     `json:"pid"`
	Version   string  `json:"version"`
	PauseMs   float64 `json:"pause_ms"`
	MountKept bool    `json:"mount_kept"`
}

// Run upgrades.
func (c *upgradeCmd) Run(ctx context.Context, out io.Writer) error {
	const command = "upgrade"
	now, err := c.upgrade(ctx)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	pauseMs := float64(now.Pause) / float64(time.Millisecond)
	if c.JSON {
		err = writeJSON(out, command, false, upgradeReport{now.PID, now.Version, pauseMs, now.MountKept})
	} else {
		_, err = fmt.Fprintf(out, "kv3fs %s serves as process %d. Clients have waited %.1f ms.\n", printable(now.Version), now.PID, pauseMs)
	}
	if err == nil && !now.MountKept {
		err = errors.New("the mount could not be kept, and its clients were cut off; rings go on: the daemon's log says why")
	}
	return err
}

func (c *upgradeCmd) upgrade(ctx context.Context) (now admin.Successor, err error) {
	if c.Binary != "" {
		if c.Binary, err = filepath.Abs(c.Binary); err != nil {
			return now, err
		}
	}
	dirs, err := c.sockets(ctx)
	if err != nil {
		return now, err
	}
	client, err := admin.Dial(ctx, dirs, c.Timeout)
	if err != nil {
		return now, err
	}
	begun, err := client.Upgrade(ctx, c.Binary)
	client.Close()
	if err != nil {
		return now, err
	}
	return c.await(ctx, dirs, begun)
}

// sockets returns where the daemon has its socket. Its mount is asked once: while the program is executed it does not answer.
func (c *upgradeCmd) sockets(ctx context.Context) ([]string, error) {
	if c.PID != 0 {
		mount, err := mountOf(ctx, c.PID)
		if err != nil {
			return nil, err
		}
		c.Mount = givenPath(mount)
	}
	data, err := c.data()
	if err == nil && data == "" {
		data, err = anyData()
	}
	if err != nil {
		return nil, err
	}
	return daemonDirs(data)
}

// upgradeTick is how often the successor is asked for.
const upgradeTick = 10 * time.Millisecond

// await returns when the successor of a daemon serves.
func (c *upgradeCmd) await(ctx context.Context, dirs []string, begun admin.Begun) (now admin.Successor, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("process %d has executed the program, which has not been ready for %v: look at its log", begun.PID, c.Timeout))
	defer cancel()
	tick := time.NewTicker(upgradeTick)
	defer tick.Stop()
	for {
		client, err := admin.Dial(ctx, dirs, c.Timeout)
		if err == nil {
			now, err = client.Successor(ctx)
			client.Close()
		}
		switch {
		case err == nil && now.Token == begun.Token && now.Ready:
			return now, nil
		case err == nil && now.Token != begun.Token && now.Ready:
			return now, fmt.Errorf("process %d has executed the program, but another daemon serves now: it has ended, and was started again; look at its log", begun.PID)
		case errors.Is(unix.Kill(begun.PID, 0), unix.ESRCH):
			return now, fmt.Errorf("process %d has executed the program, and has ended: look at its log", begun.PID)
		}
		select {
		case <-ctx.Done():
			return now, context.Cause(ctx)
		case <-tick.C:
		}
	}
}
