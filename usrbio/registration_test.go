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

// testDir is an iovsDir on an ordinary directory, whose calls hang on demand.
func testDir(t *testing.T, answerTimeout time.Duration) (*iovsDir, string) {
	t.Helper()
	path := t.TempDir()
	d := newIovsDir(answerTimeout)
	err := d.do(bg, func() (err error) {
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

// Only one call waits in vain. What the daemon carries out afterwards is undone, and
// what was to be removed is removed.
func TestRegistrarOfHungDaemon(t *testing.T) {
	d, path := testDir(t, 200*time.Millisecond)
	if err := errors.Join(d.link(bg, "/dev/shm/x", "first"), d.link(bg, "/dev/shm/x", "second")); err != nil {
		t.Fatal(err)
	}
	if target, err := d.readlink(bg, "first"); target != "/dev/shm/x" || err != nil {
		t.Fatal(target, err)
	}

	answer, begun := make(chan struct{}), make(chan struct{})
	var hung sync.WaitGroup
	hung.Go(func() {
		err := d.do(bg, func() error {
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
			if err := d.unlink(bg, "first"); err != syscall.ETIMEDOUT {
				t.Errorf("a call behind it: %v", err)
			}
		})
	}
	hung.Wait()

	began := time.Now()
	for range 1000 {
		if err := d.link(bg, "/dev/shm/x", "never"); err != syscall.ETIMEDOUT {
			t.Fatalf("link: %v", err)
		}
		if _, err := d.readlink(bg, "first"); err != syscall.ETIMEDOUT {
			t.Fatalf("readlink: %v", err)
		}
	}
	closed := false
	if err := d.finish(bg, func() error { <-answer; closed = true; return nil }); err != syscall.ETIMEDOUT {
		t.Errorf("finish: %v", err)
	}
	if err := d.unlink(bg, "second"); err != syscall.ETIMEDOUT {
		t.Errorf("unlink: %v", err)
	}
	if err := d.probe("first"); err != nil {
		t.Errorf("the probe queued behind a call that hangs: %v", err)
	}
	if err := d.close(bg); err != nil {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("calls that should not wait took %v", took)
	}
	if closed {
		t.Error("finish did not hang") // and no data race: answer is still open
	}

	close(answer)
	<-d.ended
	if !closed {
		t.Error("what finish was given has not run")
	}
	for _, name := range []string{"first", "second", "late", "never"} {
		if exists(t, filepath.Join(path, name)) {
			t.Errorf("%s is left behind", name)
		}
	}
}

// The daemon answers while the registrar is still open: what was postponed is done then, not
// at the end.
func TestRegistrarMakesUp(t *testing.T) {
	d, path := testDir(t, 20*time.Millisecond)
	if err := d.link(bg, "/dev/shm/x", "a"); err != nil {
		t.Fatal(err)
	}
	answer := make(chan struct{})
	d.do(bg, func() error { <-answer; return nil }, nil)
	d.unlink(bg, "a")
	close(answer)
	eventually(t, "the postponed unlink", func() bool { return !exists(t, filepath.Join(path, "a")) })
	d.close(bg)
	<-d.ended
}

// All threads for calls are busy with work whose callers have left, and a call gives up waiting
// for one. When they are free again, calls work again.
func TestRegistrarRecoversFromManyCalls(t *testing.T) {
	d, _ := testDir(t, 50*time.Millisecond)
	answer := make(chan struct{})
	for range maxCalls {
		ctx, cancel := context.WithCancel(bg)
		left := make(chan struct{})
		begun := make(chan struct{})
		go func() { <-begun; cancel() }()
		err := d.call(ctx, func() error { close(begun); <-left; return nil }, func() { <-answer })
		if err != context.Canceled {
			t.Fatalf("call: %v", err)
		}
		close(left) // the call succeeds after its caller has left, and is undone
	}
	nothing := func() error { return nil }
	if err := d.call(bg, nothing, nil); err != syscall.ETIMEDOUT {
		t.Errorf("a call behind them: %v", err)
	}
	close(answer)
	eventually(t, "a call succeeds", func() bool { return d.call(bg, nothing, nil) == nil })
	d.close(bg)
	<-d.ended
}

// hungRegistrar is a peer whose unlink hangs.
type hungRegistrar struct {
	*peer
	answer chan struct{}
}

func (h hungRegistrar) unlink(ctx context.Context, name string) error {
	<-h.answer
	return h.peer.unlink(ctx, name)
}

// A Close that waits for the daemon delays no other call.
func TestCloseOnHungDaemon(t *testing.T) {
	b := fixture(t, RingOptions{})
	h := hungRegistrar{b.p, make(chan struct{})}
	b.m.registrar = h
	b.prepare(t, 0, 16, 0)
	var closing sync.WaitGroup
	closing.Go(func() { b.r.Close(bg) })
	eventually(t, "the ring closes", b.r.unmapping.Load)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16}); !errors.Is(err, os.ErrClosed) {
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

// A context ends the wait of each call on a daemon that hangs, long before the
// daemon counts as hung. What the daemon does afterwards is undone or finished.
func TestContextEndsWaits(t *testing.T) {
	d, path := testDir(t, time.Hour)
	if err := d.link(bg, "/dev/shm/x", "old"); err != nil {
		t.Fatal(err)
	}
	answer := make(chan struct{})
	shortly := func() context.Context {
		ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	symlink := func(name string) func() error {
		return func() error {
			<-answer
			return os.Symlink("/dev/shm/x", filepath.Join(path, name))
		}
	}
	remove := func(name string) func() { return func() { os.Remove(filepath.Join(path, name)) } }
	finished := make(chan struct{}, 2*maxCalls)
	finish := func() error { <-answer; finished <- struct{}{}; return nil }
	began := time.Now()
	if err := d.do(shortly(), symlink("do"), remove("do")); err != context.DeadlineExceeded {
		t.Errorf("do: %v", err)
	}
	for name, call := range map[string]func(context.Context) error{ // with the registering thread hung
		"call":   func(ctx context.Context) error { return d.call(ctx, symlink("call"), remove("call")) },
		"unlink": func(ctx context.Context) error { return d.unlink(ctx, "old") },
		"finish": func(ctx context.Context) error { return d.finish(ctx, finish) },
	} {
		if err := call(shortly()); err != context.DeadlineExceeded {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 2*maxCalls - 1 { // not begun: left to the registering thread
		ctx, cancel := context.WithCancel(bg)
		cancel()
		if err := d.finish(ctx, finish); err != context.Canceled {
			t.Errorf("finish: %v", err)
		}
	}
	if _, err := d.readlink(shortly(), "old"); err != context.DeadlineExceeded {
		t.Errorf("readlink: %v", err)
	}
	if err := d.close(shortly()); err != context.DeadlineExceeded {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("calls with a bound of 20 ms took %v", took)
	}
	close(answer)
	<-d.ended
	eventually(t, "everything left to finish has run", func() bool { return len(finished) == cap(finished) })
	for _, name := range []string{"old", "do", "call"} {
		eventually(t, name+" is gone", func() bool { return !exists(t, filepath.Join(path, name)) })
	}
}

// A daemon that answers late counts as hung only until then.
func TestRegistrarRecovers(t *testing.T) {
	d, _ := testDir(t, 20*time.Millisecond)
	answer := make(chan struct{})
	if err := d.do(bg, func() error { <-answer; return nil }, nil); err != syscall.ETIMEDOUT {
		t.Fatal(err)
	}
	if err := d.link(bg, "/dev/shm/x", "a"); err != syscall.ETIMEDOUT {
		t.Errorf("link while it hangs: %v", err)
	}
	close(answer)
	eventually(t, "link", func() bool { return d.link(bg, "/dev/shm/x", "a") == nil })
	if err := errors.Join(d.unlink(bg, "a"), d.close(bg)); err != nil {
		t.Error(err)
	}
}

// The same holds if the daemon hangs in a postponed call, for which no caller waits.
func TestRegistrarRecoversFromWhatIsPostponed(t *testing.T) {
	d, _ := testDir(t, 20*time.Millisecond)
	answer, begun := make(chan struct{}), make(chan struct{})
	d.postpone(func() { close(begun); <-answer })
	<-begun
	if err := d.link(bg, "/dev/shm/x", "a"); err != syscall.ETIMEDOUT {
		t.Errorf("link while it hangs: %v", err)
	}
	close(answer)
	eventually(t, "link", func() bool { return d.link(bg, "/dev/shm/x", "a") == nil })
	if err := errors.Join(d.unlink(bg, "a"), d.close(bg)); err != nil {
		t.Error(err)
	}
}

// close overtakes an unlink that waits for the registering thread, and a caller that
// has linked and found the mount closed. Neither leaves a name behind.
func TestNothingIsLinkedAfterClose(t *testing.T) {
	for range 20 {
		d, path := testDir(t, 20*time.Second)
		for _, name := range []string{"overtaken", "late"} {
			if err := d.link(bg, "/dev/shm/x", name); err != nil {
				t.Fatal(err)
			}
		}
		answer, begun := make(chan struct{}), make(chan struct{})
		var calls sync.WaitGroup
		calls.Go(func() { _ = d.do(bg, func() error { close(begun); <-answer; return nil }, nil) })
		<-begun
		calls.Go(func() {
			if err := d.unlink(bg, "overtaken"); err != nil {
				t.Errorf("unlink: %v", err)
			}
		})
		time.Sleep(time.Millisecond) // so that it waits
		short, cancel := context.WithTimeout(bg, time.Millisecond)
		defer cancel()
		if err := d.close(short); err != context.DeadlineExceeded {
			t.Errorf("close: %v", err)
		}
		close(answer)
		calls.Wait()
		<-d.ended
		if err := d.unlink(bg, "late"); err != nil {
			t.Errorf("unlink after the end: %v", err)
		}
		for _, name := range []string{"overtaken", "late"} {
			if exists(t, filepath.Join(path, name)) {
				t.Errorf("%s is left", name)
			}
		}
	}
}

// Closing under a context that is over releases everything and waits for nothing.
func TestCloseAfterItsContext(t *testing.T) {
	b := fixture(t, RingOptions{})
	over, cancel := context.WithCancel(bg)
	cancel()
	if err := b.m.Close(over); err != nil { // the peer answers whatever the context says
		t.Error(err)
	}
	if b.v.Bytes() != nil || !b.f.closed.Load() || !b.r.unmapping.Load() {
		t.Error("something is open")
	}
	if _, err := FindMount(over, "/"); !errors.Is(err, context.Canceled) {
		t.Errorf("find mount: %v", err)
	}
	if _, err := Open(over, "/"); !errors.Is(err, context.Canceled) {
		t.Errorf("open: %v", err)
	}
}
