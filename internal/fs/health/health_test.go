package health

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }

func TestAnswer(t *testing.T) {
	var none *Store
	if none.Err() != nil {
		t.Error("no store is sick")
	}
	for err, want := range map[error]error{
		nil:                nil,
		syscall.ENOTCONN:   syscall.EIO,
		syscall.ESHUTDOWN:  syscall.EIO,
		syscall.EBADFD:     syscall.EIO,
		syscall.EHOSTDOWN:  syscall.EIO,
		syscall.EIO:        syscall.EIO,
		syscall.ENOENT:     syscall.ENOENT,
		syscall.ESTALE:     syscall.ESTALE,
		syscall.ENOSPC:     syscall.ENOSPC,
		io.ErrShortWrite:   io.ErrShortWrite,
		syscall.ECONNRESET: syscall.EIO,
	} {
		if got := none.Answer(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
	if got := none.Answer(fmt.Errorf("open: %w", syscall.ENOTCONN)); got != syscall.EIO {
		t.Errorf("a wrapped one: %v", got)
	}
}

// A call that fails has the watch look at once, long before the next look; Err follows what it finds.
func TestLooksWhenCallsFail(t *testing.T) {
	var log text
	look := make(chan error)
	s := Watch(Options{Dir: "/data", Look: func() error { return <-look }, Limit: time.Hour, Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer s.End()
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	s.Answer(syscall.ENOTCONN)
	look <- syscall.ENOTCONN
	look <- syscall.ENOTCONN // the second begins once the first is recorded
	if err := s.Err(); !errors.Is(err, syscall.ENOTCONN) || !strings.Contains(err.Error(), "/data") {
		t.Errorf("sick: %v", err)
	}
	look <- nil
	s.Answer(syscall.ENOTCONN)
	look <- nil
	if err := s.Err(); err != nil {
		t.Errorf("well again: %v", err)
	}
	for _, line := range []string{"does not work", "works again", "the client gets EIO"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("the log has %q %d times, want once:\n%s", line, n, log.String())
		}
	}
}

func TestHangs(t *testing.T) {
	var log text
	look := make(chan error)
	s := Watch(Options{Dir: "/data", Look: func() error { return <-look }, Limit: time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer s.End()
	s.Answer(syscall.ENOTCONN)
	for end := time.Now().Add(time.Minute); s.Err() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a look hangs, and nothing is said")
		}
	}
	if err := s.Err(); !strings.Contains(err.Error(), "has not answered for 1ms") {
		t.Error(err)
	}
	look <- nil
	for end := time.Now().Add(time.Minute); !strings.Contains(log.String(), "works again"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it answers, and nothing is said:\n%s", log.String())
		}
	}
	close(look)
}

// One look is lost, and never ends. The next one shows that the file system works.
func TestGoesOnAfterLostLook(t *testing.T) {
	var log text
	lost := make(chan struct{})
	defer close(lost)
	var n atomic.Int32
	s := Watch(Options{Dir: "/data", Limit: 100 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil)), Look: func() error {
		if n.Add(1) == 1 {
			<-lost
		}
		return nil
	}})
	defer s.End()
	s.Doubt()
	for _, line := range []string{"has not answered for 100ms", "works again"} {
		for end := time.Now().Add(time.Minute); !strings.Contains(log.String(), line); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no line with %q:\n%s", line, log.String())
			}
		}
	}
	if s.Hangs() || s.Err() != nil {
		t.Error(s.Err())
	}
}

// However often calls fail, looks have a pause.
func TestDoubtDoesNotLookWithoutPause(t *testing.T) {
	var n atomic.Int32
	s := Watch(Options{Dir: "/data", Limit: time.Minute, Log: slog.New(slog.DiscardHandler), Look: func() error { n.Add(1); return nil }})
	defer s.End()
	began := time.Now()
	for n.Load() < 3 {
		s.Doubt()
	}
	if took := time.Since(began); took < 2*leastPause {
		t.Errorf("three looks within %v", took)
	}
}

// text is a log that two goroutines use.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (t *text) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(b)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}
