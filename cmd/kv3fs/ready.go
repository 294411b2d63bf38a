package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/advise/doctor"
	"github.com/kv3fs/kv3fs/internal/host"
)

// readyCmd says whether engines are served.
type readyCmd struct {
	Dir    string        `arg:"" name:"dir" help:"A directory on the mount in which you may create files: the mount itself, or a container's volume."`
	Within time.Duration `default:"2s" range:"100ms..1h" help:"How long the trip through the ring may take."`
	Wait   time.Duration `default:"0s" range:"0s..24h" help:"How long to try again until it works. Default: once."`
	Daemon bool          `help:"Also ask the daemon what its /readyz says, at its socket in the data directory, which must be here under the daemon's name for it."`
}

// retryEvery is the time between two tries.
const retryEvery = 250 * time.Millisecond

// Help is what "kv3fs ready --help" adds to the flags.
func (*readyCmd) Help() string {
	return `For example, as a probe of a container, or before an engine is started:

  kv3fs ready --daemon /mnt/3fs
  kv3fs ready --wait 10m /mnt/3fs/vllm

It writes 4 KiB to a file without a name, reads them back and compares them. A trip that hangs in the mount is
left to itself, and until it has come back no other one is begun.

Exit status: 0 if that works, 1 if not, 2 if the command line is wrong, 130 if interrupted.`
}

// Run tries until it works or the time is over.
func (c *readyCmd) Run(ctx context.Context, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return err
	}
	o := doctor.Options{Host: host.Local(), Probe: []string{self, "probe"}}
	until := time.Now().Add(c.Wait)
	for {
		took, err := c.try(ctx, o, dir)
		switch {
		case err == nil:
			_, err = fmt.Fprintf(out, "ready: 4 KiB written and read back through a ring of %s in %v\n", printable(dir), took.Round(10*time.Microsecond))
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case !time.Now().Before(until):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryEvery):
		}
	}
}

// try makes one trip.
func (c *readyCmd) try(ctx context.Context, o doctor.Options, dir string) (time.Duration, error) {
	lock, err := tripLock(dir)
	if err != nil {
		return 0, err
	}
	took, err := doctor.Trip(ctx, o, dir, lock, c.Within)
	if err == nil && c.Daemon {
		err = c.ask(ctx, dir)
	}
	return took, err
}

// ask returns what the daemon of a mount lacks to serve.
func (c *readyCmd) ask(ctx context.Context, dir string) error {
	daemons, _, err := runningDaemons(ctx, dir)
	if err != nil {
		return err
	}
	client, err := daemons[0].dial(ctx, c.Within)
	if err != nil {
		return err
	}
	defer client.Close()
	var is api.Status
	if err := client.Show(ctx, "status", &is); err != nil {
		return err
	}
	var why []string
	for _, check := range is.Checks {
		if !check.Ready {
			why = append(why, fmt.Sprintf("%s: %s", check.Name, cmp.Or(check.Error, "not ready")))
		}
	}
	if len(why) > 0 {
		return errors.New(strings.Join(why, "; "))
	}
	return nil
}

// tripLock names the file by which this user makes one trip at a time in a directory.
func tripLock(dir string) (string, error) {
	own, err := ownDir()
	if err != nil {
		return "", err
	}
	sum := fnv.New64a()
	_, _ = io.WriteString(sum, dir) // cannot fail
	return filepath.Join(own, fmt.Sprintf("%x", sum.Sum64())), nil
}

// ownDir makes a directory that nobody but this user can write to: where no other user can take its name, if there is such a place.
func ownDir() (string, error) {
	uid := os.Geteuid()
	places := []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir()}
	if os.Getenv("TMPDIR") == "" && uid == 0 {
		places = append([]string{"/run"}, places...)
	}
	var failed error
	for _, place := range places {
		if place == "" {
			continue
		}
		dir := filepath.Join(place, fmt.Sprintf("kv3fs-ready-%d", uid))
		if failed = makeOwn(dir, uid); failed == nil {
			return dir, nil
		}
	}
	return "", failed
}

func makeOwn(dir string, uid int) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var is unix.Stat_t
	if err := unix.Lstat(dir, &is); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if is.Mode&unix.S_IFMT != unix.S_IFDIR || int(is.Uid) != uid || is.Mode&0o022 != 0 {
		return fmt.Errorf("%s must be a directory that uid %d alone can write to, and is of uid %d with mode %04o: remove it, or set TMPDIR to another place", dir, uid, is.Uid, is.Mode&0o7777)
	}
	return nil
}
