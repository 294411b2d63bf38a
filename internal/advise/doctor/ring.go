package doctor

import (
	"bytes"
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
	// ringPatience is more than the daemon's own deadline for a request.
	ringPatience = 10 * time.Second
	ringBytes    = 4 << 10
)

// ringFacts are how a trip through the rings went.
type ringFacts struct {
	Create  trouble       `json:"create"` // of the file
	Absent  string        `json:"absent"` // the daemon's semaphore, where it is not in this /dev/shm
	Trip    trouble       `json:"trip"`
	Elapsed time.Duration `json:"elapsed_ns"`
}

// checkRing writes 4 KiB through a ring and reads them back, in a file that has
// lost its name before the first byte. dirs are tried in turn until one can be
// written in.
func checkRing(ctx context.Context, o *Options, dirs []string) Finding {
	const id = "ring"
	var facts ringFacts
	for _, dir := range dirs {
		var err error
		facts, err = ask[ringFacts](ctx, o, ringPatience, "ring", dir)
		switch {
		case errors.Is(err, errHung):
			return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("%d bytes through a ring: no answer within %v", ringBytes, ringPatience),
				Needed: "answers within the daemon's --deadline, 5 s by default; most engines wait for ever"}
		case err != nil:
			return unknown(id, "whether rings work", err)
		}
		if !facts.Create.any() {
			break
		}
	}
	return judgeRing(facts)
}

func judgeRing(f ringFacts) Finding {
	const id = "ring"
	switch {
	case f.Create.is(syscall.EACCES, syscall.EPERM, syscall.EROFS):
		return Finding{ID: id, Status: Note, Found: "not tried: " + f.Create.Text,
			Needed: "a file on the mount; run the doctor as a user who may write there"}
	case f.Create.any():
		return Finding{ID: id, Status: Failure, Found: f.Create.Text, Needed: "files can be made on the mount"}
	case f.Absent != "":
		return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("the daemon's semaphore %s is not here: this is another /dev/shm than the daemon's", f.Absent),
			Needed: "the daemon's /dev/shm: rings are shared memory",
			Fix:    "docker run --ipc=host ...   # or: -v /dev/shm:/dev/shm; Kubernetes: hostIPC: true"}
	case f.Trip.is(syscall.ENOSPC, syscall.ENOMEM):
		return Finding{ID: id, Status: Failure, Found: f.Trip.Text, Needed: "room in /dev/shm and on the disk"}
	case f.Trip.is(syscall.ETIMEDOUT):
		return Finding{ID: id, Status: Failure, Found: f.Trip.Text, Needed: "a disk that answers within the daemon's --deadline",
			Fix: "dmesg | tail   # what the disk says; a slow network file system: kv3fs serve --deadline 30s"}
	case f.Trip.any():
		return Finding{ID: id, Status: Failure, Found: f.Trip.Text, Needed: "a write and a read of 4 KiB through a ring"}
	}
	return ok(id, "4 KiB written and read back, with all that goes before, in %v", f.Elapsed.Round(10*time.Microsecond))
}

// probeRing makes the trip in a new file in dir.
func probeRing(dir string) (facts ringFacts) {
	name := filepath.Join(dir, ".kv3fs-doctor-"+strconv.Itoa(os.Getpid()))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return ringFacts{Create: troubleOf(err)}
	}
	defer f.Close()
	if err := os.Remove(name); err != nil {
		return ringFacts{Create: troubleOf(err)}
	}
	if path := absentSemaphore(dir); path != "" {
		return ringFacts{Absent: path}
	}
	began := time.Now()
	err = roundTrip(dir, f)
	return ringFacts{Trip: troubleOf(err), Elapsed: time.Since(began)}
}

// absentSemaphore is the daemon's semaphore if it cannot be found where the
// daemon says it is.
func absentSemaphore(dir string) string {
	point, err := usrbio.FindMount(dir)
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

func roundTrip(dir string, f *os.File) error {
	m, err := usrbio.Open(dir)
	if err != nil {
		return err
	}
	defer m.Close()
	iov, err := m.NewIov(2*ringBytes, usrbio.IovOptions{Reserve: true})
	if err != nil {
		return err
	}
	file, err := m.Register(f)
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
		ring, err := m.NewRing(usrbio.RingOptions{Entries: 1, Write: step.write})
		if err != nil {
			return err
		}
		request := []usrbio.Request{{File: file, Iov: iov, IovOffset: step.offset, Bytes: ringBytes}}
		if err := ring.Do(context.Background(), request); err != nil {
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
		return errors.New("through a ring: other bytes came back than were written")
	}
	return nil
}
