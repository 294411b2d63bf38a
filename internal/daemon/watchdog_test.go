package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// The watchdog reports only while everything that is tried works, and during a stop.
func TestWatchdog(t *testing.T) {
	results := make(chan error)
	reports := make(chan struct{}, 1)
	w := &watchdog{trying: make(chan struct{}, 1),
		log: slog.New(slog.DiscardHandler), interval: time.Millisecond, quit: make(chan struct{}),
		notify: func() { reports <- struct{}{} },
		try:    []func(context.Context) error{func(context.Context) error { return <-results }},
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.run()
	}()
	report := func() {
		t.Helper()
		select {
		case <-reports:
		case <-time.After(time.Minute):
			t.Fatal("no report")
		}
	}
	results <- nil
	report()
	for range 3 {
		results <- errors.New("hangs")
	}
	if len(reports) > 0 { // of the first two: the third may just be looked at
		t.Error("a report although nothing works")
	}
	results <- nil
	report()
	w.stop()
	select {
	case results <- errors.New("is unmounted"): // it may have begun before the stop
	case <-reports:
	}
	w.end()
	for {
		select {
		case <-reports:
			continue
		case <-ended:
		}
		return
	}
}

// A disk that hangs or fails is no reason for a restart, a dead mount is one.
func TestWhatAnswersTheWatchdog(t *testing.T) {
	for err, want := range map[error]bool{unix.ENOENT: true, unix.EAGAIN: true, unix.ENOTCONN: false, unix.EIO: true, nil: false} {
		if got := isAnswer(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// A lookup that hangs is the data directory's fault while that does not work, and the daemon's otherwise.
func TestHungLookupAndTheWatchdog(t *testing.T) {
	d := faultdir.New(t)
	if err := os.Mkdir(filepath.Join(d.Beneath, host.VirtDir), 0o755); err != nil {
		t.Fatal(err)
	}
	var sick atomic.Bool
	try := lookUp(d.Path, func() error {
		if sick.Load() {
			return unix.EIO
		}
		return nil
	})
	if err := try(t.Context()); err != nil {
		t.Fatal(err)
	}
	hangs := d.Hang(func(c faultdir.Call) bool { return c.Op == "lookup" })
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := try(over); !errors.Is(err, context.Canceled) {
		t.Errorf("it hangs, and the data directory works: %v", err)
	}
	<-hangs
	sick.Store(true)
	if err := try(over); err != nil {
		t.Errorf("it hangs with the data directory: %v", err)
	}
	d.Heal()
	if err := try(t.Context()); err != nil {
		t.Errorf("it answers again: %v", err)
	}
}
