package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/usrbio"
)

// tripFacts describe a trip that somebody waits for.
type tripFacts struct {
	Busy    bool       // another one has not come back yet
	FindErr probeError // the directory is on no 3FS, or missing
	Ring    ringFacts
}

// Trip writes 4 KiB through a ring in dir, which is on a 3FS, reads them back, and returns how long that took. It returns within limit, also where
// the mount hangs. lock is a file, made if missing, by which there is only one trip at a time: a process that hangs in the mount cannot
// be ended, and whoever asks again and again would leave one each time.
func Trip(ctx context.Context, o Options, dir, lock string, limit time.Duration) (time.Duration, error) {
	facts, err := runProbe[tripFacts](ctx, &o, limit, "trip", dir, lock)
	switch {
	case errors.Is(err, errNoAnswer):
		return 0, fmt.Errorf("%d bytes through a ring of %s: no answer within %v", ringBytes, dir, limit)
	case err != nil:
		return 0, err
	case facts.Busy:
		return 0, fmt.Errorf("a trip through a ring of %s that was begun before has not come back", dir)
	case facts.FindErr.failed():
		return 0, fmt.Errorf("no 3FS there: %s; its daemon does not serve yet, or the mount does not reach here", facts.FindErr.Text)
	}
	if f := judgeRing(facts.Ring, dir, "", o.Host.EUID); f.Status != OK {
		return 0, fmt.Errorf("%s; it takes %s", f.Found, f.Needed)
	}
	return facts.Ring.Elapsed, nil
}

// probeTrip makes a trip unless another process makes one. The lock ends with the process.
func probeTrip(dir, lock string) (f tripFacts, err error) {
	fd, err := unix.Open(lock, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return f, fmt.Errorf("%s: %w", lock, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Busy = errors.Is(err, unix.EWOULDBLOCK)
		if f.Busy {
			err = nil
		}
		return f, err
	}
	if _, err := usrbio.FindMount(context.Background(), dir); err != nil { // the parent process bounds this one
		f.FindErr = probeErrorOf(err)
		return f, nil
	}
	f.Ring = probeRing(dir)
	return f, nil
}
