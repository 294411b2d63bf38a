package daemon

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/health"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// A data directory whose file system does not work is a reason not to be ready, and /readyz says which.
func TestNotReadyWithoutTheDataDirectory(t *testing.T) {
	var away atomic.Bool
	h := health.Watch(health.Options{Dir: "/data", Limit: time.Minute, Log: slog.New(slog.DiscardHandler), Look: func() error {
		if away.Load() {
			return unix.ENOTCONN
		}
		return nil
	}})
	defer h.End()
	p := Pages{Listen: []httpserver.Address{{Network: "tcp", Where: "127.0.0.1:0"}}, Drain: patience, Log: slog.New(slog.DiscardHandler), health: h}
	s, err := startPages(t.Context(), pagesPlace{host: t.TempDir()}, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	url := "http://" + s.addresses()[0].Where + "/readyz"
	becomes := func(want int, text string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			status, answer := post(t, url, "")
			if status == want && strings.Contains(answer, text) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d %s, want %d and %q", status, answer, want, text)
			}
		}
	}
	becomes(200, "ready")
	away.Store(true)
	_ = h.Answer(unix.ENOTCONN) // a call has failed
	becomes(503, "/data does not work: transport endpoint is not connected")
	away.Store(false)
	becomes(200, "ready")
}

// A data directory whose mount has died and was mounted again works by its path and not for the daemon, which has the former
// mount: it says so, and that a restart cures it.
func TestMountedAgain(t *testing.T) {
	daemontest.NeedRoot(t)
	d := faultdir.New(t)
	u, err := newDataUser(d.Path, "")
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	if err := u.look(); err != nil {
		t.Error(err)
	}
	d.Fail(func(faultdir.Call) syscall.Errno { return syscall.ENOTCONN })
	var restart health.NeedsRestart
	if err := u.look(); !errors.Is(err, unix.ENOTCONN) || errors.As(err, &restart) {
		t.Errorf("the file system is away: %v", err)
	}
	if err := unix.Mount("tmpfs", d.Path, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := u.look(); !errors.Is(err, unix.ENOTCONN) || !errors.As(err, &restart) || !strings.Contains(err.Error(), "another mount now") {
		t.Errorf("it is mounted again: %v", err)
	}
	if err := unix.Unmount(d.Path, 0); err != nil {
		t.Fatal(err)
	}
	d.Heal()
	if err := u.look(); err != nil {
		t.Errorf("it is back: %v", err)
	}
}

// The watchdog hears that the file system does not answer long before it counts as hung, with a --deadline of minutes.
func TestWatchdogAndLongDeadline(t *testing.T) {
	ends := make(chan struct{})
	defer close(ends)
	h := health.Watch(health.Options{Dir: "/data", Limit: time.Hour, Log: slog.New(slog.DiscardHandler), Look: func() error { <-ends; return nil }})
	defer h.End()
	check := answers(h)
	if err := check(); err != nil {
		t.Error(err)
	}
	h.Doubt()
	for end := time.Now().Add(patience); check() == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a look hangs, and the watchdog takes it for the daemon")
		}
	}
	if h.Err() != nil {
		t.Error(h.Err())
	}
}
