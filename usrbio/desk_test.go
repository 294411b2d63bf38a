package usrbio

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// testDesk is a desk on an ordinary directory, whose calls hang on demand.
func testDesk(t *testing.T, patience time.Duration) (*iovsDir, string) {
	t.Helper()
	path := t.TempDir()
	d := newIovsDir(patience)
	err := d.do(func() (err error) {
		d.dir, err = os.Open(path)
		return err
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d, path
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

// One call waits in vain; no other one does, before or after it. What the daemon
// carries out in the end is undone, what was to go goes.
func TestDeskOfHungDaemon(t *testing.T) {
	d, path := testDesk(t, 200*time.Millisecond)
	if err := errors.Join(d.link("/dev/shm/x", "first"), d.link("/dev/shm/x", "second")); err != nil {
		t.Fatal(err)
	}
	if target, err := d.readlink("first"); target != "/dev/shm/x" || err != nil {
		t.Fatal(target, err)
	}

	answer, begun := make(chan struct{}), make(chan struct{})
	var hung sync.WaitGroup
	hung.Go(func() {
		err := d.do(func() error {
			close(begun)
			<-answer
			return os.Symlink("/dev/shm/x", filepath.Join(path, "late"))
		}, func() { d.unlinkNow("late") })
		if err != syscall.ETIMEDOUT {
			t.Errorf("the call that hangs: %v", err)
		}
	})
	<-begun
	for range 20 {
		hung.Go(func() {
			if err := d.unlink("first"); err != syscall.ETIMEDOUT {
				t.Errorf("a call behind it: %v", err)
			}
		})
	}
	hung.Wait()

	began := time.Now()
	for range 1000 {
		if err := d.link("/dev/shm/x", "never"); err != syscall.ETIMEDOUT {
			t.Fatalf("link: %v", err)
		}
		if _, err := d.readlink("first"); err != syscall.ETIMEDOUT {
			t.Fatalf("readlink: %v", err)
		}
	}
	closed := false
	if err := d.bound(func() error { <-answer; closed = true; return nil }); err != syscall.ETIMEDOUT {
		t.Errorf("bound: %v", err)
	}
	if err := d.unlink("second"); err != syscall.ETIMEDOUT {
		t.Errorf("unlink: %v", err)
	}
	if err := d.probe("first"); err != nil {
		t.Errorf("the probe stands in no queue: %v", err)
	}
	if err := d.close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("calls that should not wait took %v", took)
	}
	if closed {
		t.Error("bound did not hang") // and no data race: answer is still open
	}

	close(answer)
	<-d.ended
	for _, name := range []string{"first", "second", "late", "never"} {
		if exists(t, filepath.Join(path, name)) {
			t.Errorf("%s is left behind", name)
		}
	}
}

// The daemon answers while the desk is still open: what is owed does not wait for
// its end.
func TestDeskMakesUp(t *testing.T) {
	d, path := testDesk(t, 20*time.Millisecond)
	if err := d.link("/dev/shm/x", "a"); err != nil {
		t.Fatal(err)
	}
	answer := make(chan struct{})
	d.do(func() error { <-answer; return nil }, nil)
	d.unlink("a")
	close(answer)
	eventually(t, "the owed unlink", func() bool { return !exists(t, filepath.Join(path, "a")) })
	d.close()
	<-d.ended
}

// hungDesk is a peer whose unlink hangs.
type hungDesk struct {
	*peer
	answer chan struct{}
}

func (h hungDesk) unlink(name string) error {
	<-h.answer
	return h.peer.unlink(name)
}

// A Close that waits for the daemon holds up nobody else.
func TestCloseOnHungDaemon(t *testing.T) {
	b := fixture(t, RingOptions{})
	h := hungDesk{b.p, make(chan struct{})}
	b.m.desk = h
	b.prepare(t, 0, 16, 0)
	var closing sync.WaitGroup
	closing.Go(func() { b.r.Close() })
	eventually(t, "the ring closes", b.r.closing.Load)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := b.r.Prepare(b.f, 0, b.v, 0, 16, 0); !errors.Is(err, os.ErrClosed) {
			t.Errorf("prepare: %v", err)
		}
		if err := b.r.Submit(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("submit: %v", err)
		}
		var dst [1]Completion
		if _, err := b.r.Wait(context.Background(), dst[:], 1); !errors.Is(err, os.ErrClosed) {
			t.Errorf("wait: %v", err)
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("a call on the ring hangs behind its Close")
	}
	close(h.answer)
	closing.Wait()
}
