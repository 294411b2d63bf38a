package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/usrbio"
)

const (
	// ringTimeout is longer than the daemon's default deadline for a request.
	ringTimeout = 10 * time.Second
	ringBytes   = 4 << 10
)

// What a client with a /dev/shm of its own needs of the daemon.
const (
	ownShmNeeds = "a daemon that can look into containers: root with CAP_SYS_PTRACE in the host's PID namespace, on Linux 5.12 or later; its log names what it lacks"
	ownShmFix   = "hostPID: true and privileged for the daemon's pod; docker: --pid=host --cap-add SYS_PTRACE. Or one /dev/shm for both: --ipc=host, or -v /dev/shm:/dev/shm"
)

// ringFacts describes a write and a read through rings.
type ringFacts struct {
	SetupErr         probeError // from preparing a container's namespace
	CreateErr        probeError // from creating the file
	MissingSemaphore string     // path of the daemon's semaphore, if it is not in this /dev/shm
	TransferErr      probeError
	Elapsed          time.Duration
}

// checkRing writes 4 KiB through a ring and reads them back, using a file that it unlinks
// before writing. It tries dirs of the mount at point in turn until it can create the file.
func checkRing(ctx context.Context, o *Options, point string, dirs []string) Finding {
	const id = "ring"
	var facts ringFacts
	for _, dir := range dirs {
		var err error
		facts, err = runProbe[ringFacts](ctx, o, ringTimeout, "ring", dir)
		switch {
		case errors.Is(err, errNoAnswer):
			return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("%d bytes through a ring: no answer within %v", ringBytes, ringTimeout),
				Needed: "an answer within the daemon's --deadline, 5 s by default; most engines wait without limit"}
		case err != nil:
			return unknown(id, "whether rings work", err)
		}
		if !facts.CreateErr.failed() {
			break
		}
	}
	f := judgeRing(facts, dirs[0], o.Engine, o.Host.EUID)
	if facts.CreateErr.is(syscall.EROFS) {
		f.Fix = restart(ctx, o, point, writable)
	}
	return f
}

// judgeRing judges a round trip on the mount at point by the user euid, who runs engine, or no
// engine in particular.
func judgeRing(f ringFacts, point, engine string, euid int) Finding {
	const id = "ring"
	switch {
	case f.CreateErr.is(syscall.EROFS):
		found := Finding{ID: id, Status: Warning, Found: "not tried: " + f.CreateErr.Text,
			Needed: "a mount that can be written to, from a daemon without --readonly whose data directory is on a writable file system: from this one engines load what is there, and store nothing"}
		if engine != "" {
			found.Status = Failure
		}
		return found
	case f.CreateErr.is(syscall.EACCES, syscall.EPERM) && euid == 0:
		return Finding{ID: id, Status: Failure, Found: "not even root may create a file there: " + f.CreateErr.Text,
			Needed: "a data directory that is not immutable (lsattr -d), and no security module that forbids it"}
	case f.CreateErr.is(syscall.EACCES, syscall.EPERM):
		return Finding{ID: id, Status: Warning, Found: "not tried: " + f.CreateErr.Text,
			Needed: "a directory on the mount in which this user may create files; or run the doctor as the engine's user, with the engine's configuration",
			Fix:    fmt.Sprintf("install -d -o %d %s   # as root", euid, quote(filepath.Join(point, cmp.Or(engine, "DIR"))))}
	case f.CreateErr.failed():
		return Finding{ID: id, Status: Failure, Found: f.CreateErr.Text, Needed: "a mount on which files can be created"}
	case f.MissingSemaphore != "":
		return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("the daemon's semaphore %s does not exist here: this is not the daemon's /dev/shm, and the daemon cannot reach it", f.MissingSemaphore),
			Needed: ownShmNeeds,
			Fix:    ownShmFix}
	case f.TransferErr.is(syscall.ENOSPC, syscall.ENOMEM):
		return Finding{ID: id, Status: Failure, Found: f.TransferErr.Text, Needed: "free space in /dev/shm and on the disk"}
	case f.TransferErr.is(syscall.ETIMEDOUT):
		return Finding{ID: id, Status: Failure, Found: f.TransferErr.Text, Needed: "a disk that answers within the daemon's --deadline",
			Fix: "dmesg | tail   # the disk's errors; for a slow network file system: kv3fs serve --deadline 30s"}
	case f.TransferErr.failed():
		return Finding{ID: id, Status: Failure, Found: f.TransferErr.Text, Needed: "a write and a read of 4 KiB through a ring"}
	}
	return ok(id, "4 KiB written and read back in %v, including the setup of the rings", f.Elapsed.Round(10*time.Microsecond))
}

// probeRing writes and reads through rings in a new file in dir.
func probeRing(dir string) (facts ringFacts) {
	name := filepath.Join(dir, ".kv3fs-doctor-"+strconv.Itoa(os.Getpid()))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return ringFacts{CreateErr: probeErrorOf(err)}
	}
	defer f.Close()
	if err := os.Remove(name); err != nil {
		return ringFacts{CreateErr: probeErrorOf(err)}
	}
	if path := absentSemaphore(dir); path != "" {
		return ringFacts{MissingSemaphore: path}
	}
	began := time.Now()
	err = roundTrip(context.Background(), dir, f) // the parent process bounds this one
	return ringFacts{TransferErr: probeErrorOf(err), Elapsed: time.Since(began)}
}

// absentSemaphore returns the path of the daemon's semaphore if it does not exist.
func absentSemaphore(dir string) string {
	point, err := usrbio.FindMount(context.Background(), dir)
	if err != nil {
		return ""
	}
	path, err := os.Readlink(filepath.Join(point, host.VirtDir, "iovs", "submit-ios"))
	if err != nil {
		return ""
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return path
}

// roundTrip writes random bytes through a ring and reads them back.
func roundTrip(ctx context.Context, dir string, f *os.File) error {
	m, err := usrbio.Open(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(ctx) }() // the probe has its result by then
	iov, err := m.NewIov(ctx, 2*ringBytes, usrbio.IovOptions{Reserve: true})
	if err != nil {
		return err
	}
	file, err := m.Register(ctx, f)
	if err != nil {
		return err
	}
	written, back := iov.Bytes()[:ringBytes], iov.Bytes()[ringBytes:]
	for i := range written {
		written[i] = byte(rand.Uint32())
	}
	for _, step := range []struct {
		write  bool
		offset int64
	}{{true, 0}, {false, ringBytes}} {
		ring, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 1, Write: step.write})
		if err != nil {
			return err
		}
		request := []usrbio.Request{{File: file, Iov: iov, IovOffset: step.offset, Bytes: ringBytes}}
		if err := ring.Do(ctx, request); err != nil {
			return err
		}
		if err := request[0].Err(); err != nil {
			return fmt.Errorf("through a ring: %w", err)
		}
		if request[0].Result != ringBytes {
			return fmt.Errorf("through a ring: %d bytes of %d", request[0].Result, ringBytes)
		}
	}
	if !bytes.Equal(written, back) {
		return errors.New("through a ring: the bytes read differ from those written")
	}
	return nil
}
