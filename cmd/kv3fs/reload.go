package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kv3fs/kv3fs/internal/admin"
)

// reloadCmd has a daemon read its configuration again.
type reloadCmd struct {
	reloadFlags
	MountPoint string `arg:"" optional:"" name:"mount" help:"The daemon's mount. Default: the only one of this host."`
}

type reloadFlags struct {
	operateFlags
	PID int `name:"pid" range:"1..4194304" placeholder:"PID" help:"The daemon's process, in place of its mount."`
}

// exitRestart is the exit status where a setting has changed that needs a restart.
const exitRestart = 4 // 3 is a stop that cut clients off, which kv3fs.service takes for a success

// Help is what "kv3fs reload --help" adds to the flags.
func (*reloadCmd) Help() string {
	return `The daemon reads the file of its --config again, and the files that it names. All of it is checked first: if
anything is wrong, nothing changes, and the exit status is 1. What may change while it serves does: the
capacity and its watermarks, the log, and token and certificate of the admin address. Each setting that has
changed is printed; where one needs a restart, that is said with the reason, and the exit status is 4.

SIGHUP does the same for a daemon that has no terminal, such as one of systemd: then the log has the result.`
}

// reloadReport is what the command prints as JSON.
type reloadReport struct {
	Settings []admin.Setting `json:"settings"`
}

// Run reloads.
func (c *reloadCmd) Run(ctx context.Context, out io.Writer) error {
	const command = "reload"
	settings, err := c.reload(ctx)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	status := error(nil)
	for _, s := range settings {
		if s.Restart != "" {
			status = exitStatus(exitRestart)
		}
	}
	if c.JSON {
		return errors.Join(writeJSON(out, command, false, reloadReport{settings}), status)
	}
	if len(settings) == 0 {
		_, err := fmt.Fprintln(out, "Nothing has changed.")
		return err
	}
	for _, s := range settings {
		rest := ""
		if s.Restart != "" {
			rest = "; needs a restart: " + s.Restart
		}
		fmt.Fprintf(out, "%s: %s -> %s%s\n", s.Name, orNotSet(s.From), orNotSet(s.To), rest)
	}
	return status
}

func orNotSet(text string) string {
	if text == "" {
		return "(not set)"
	}
	return printable(text)
}

func (c *reloadCmd) reload(ctx context.Context) ([]admin.Setting, error) {
	if c.MountPoint != "" {
		c.Mount = givenPath(c.MountPoint)
	}
	client, err := c.daemon(ctx)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Reload(ctx)
}

// daemon returns the client of the daemon that the flags name.
func (f *reloadFlags) daemon(ctx context.Context) (*admin.Client, error) {
	if f.PID != 0 {
		mount, err := mountOf(ctx, f.PID)
		if err != nil {
			return nil, err
		}
		f.Mount = givenPath(mount)
	}
	client, _, err := f.connectIn(ctx, daemonDirs)
	return client, err
}

// mountOf returns the mount of a process, in bounded time: mounts of others may hang.
func mountOf(ctx context.Context, pid int) (string, error) {
	all, _, err := runningDaemons(ctx, "")
	if err != nil {
		return "", err
	}
	for _, d := range all {
		if d.pid == pid {
			return d.mount, d.err
		}
	}
	return "", fmt.Errorf("process %d serves no mount of this host that answers", pid)
}
