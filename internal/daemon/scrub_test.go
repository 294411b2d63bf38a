package daemon

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A scrub keeps to its rate, and does not make up for what a disk that hung kept it from reading.
func TestScrubPace(t *testing.T) {
	const rate = 1 << 20
	p := pace{rate: rate}
	begin := time.Unix(1000, 0)
	now := begin
	read := func(times int) {
		for range times {
			if due := p.after(rate/8, now); due.After(now) {
				now = due
			}
		}
	}
	read(80)
	if took := now.Sub(begin); took < 10*time.Second-mostLag || took > 10*time.Second {
		t.Errorf("10 MiB at 1 MiB/s took %v", took)
	}
	now = now.Add(time.Hour) // the disk hung
	begin = now
	read(80)
	if took := now.Sub(begin); took < 10*time.Second-mostLag || took > 10*time.Second {
		t.Errorf("10 MiB at 1 MiB/s took %v after a stall", took)
	}
	begin = now
	for range 80 { // each wait takes a little too long
		now = p.after(rate/8, now).Add(mostLag / 10)
	}
	if took := now.Sub(begin); took < 10*time.Second-mostLag || took > 10*time.Second+mostLag {
		t.Errorf("10 MiB at 1 MiB/s took %v with late timers", took)
	}
	p = pace{}
	if due := p.after(1<<40, now); due.After(now) {
		t.Error("a scrub without a rate waits")
	}
}

// A scrub waits for who has a lease on a file, as the daemon itself has for moments, rather than to leave the file out.
func TestScrubWaitsForLease(t *testing.T) {
	dir := t.TempDir()
	holder, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	lease := func(kind int) error {
		_, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, kind)
		return err
	}
	if err := lease(unix.F_WRLCK); err != nil {
		t.Skipf("no leases here: %v", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	opened := make(chan error, 1)
	go func() {
		f, err := (&scrub{root: root}).open(t.Context(), "f", 0)
		if err == nil {
			err = f.Close()
		}
		opened <- err
	}()
	for { // until the scrub has asked for the file
		kind, err := unix.FcntlInt(holder.Fd(), unix.F_GETLEASE, 0)
		if err != nil {
			t.Fatal(err)
		}
		if kind != unix.F_WRLCK {
			break
		}
		select {
		case err := <-opened:
			t.Fatalf("opened with %v, although there is a lease", err)
		case <-time.After(time.Millisecond):
		}
	}
	if err := lease(unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Error(err)
	}
}
