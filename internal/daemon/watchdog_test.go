package daemon

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The watchdog reports only while everything that is tried works, and during a stop.
func TestWatchdog(t *testing.T) {
	results := make(chan error)
	reports := make(chan struct{}, 1)
	w := &watchdog{
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

// A hung disk is no reason for a restart, a dead mount is one.
func TestWhatAnswersTheWatchdog(t *testing.T) {
	for err, want := range map[error]bool{unix.ENOENT: true, unix.EAGAIN: true, unix.ENOTCONN: false, unix.EIO: false, nil: false} {
		if got := isAnswer(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}
