package ringserver

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// lines is a log that tests read.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// A refused registration is logged with its cure: the first, not each.
func TestRefusedIsLogged(t *testing.T) {
	log := &lines{}
	s, _ := serve(t, Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	for range 5 {
		if _, err := s.Register(me, wire.NewUUID().String(), "/dev/shm/hf3fs-iov-of-another-host"); err != syscall.EINVAL {
			t.Fatal(err)
		}
	}
	text := log.String()
	if strings.Count(text, "refused a registration") != 1 || !strings.Contains(text, "when it is registered") || !strings.Contains(text, "hf3fs-iov-of-another-host") {
		t.Errorf("the log is\n%s", text)
	}
	if _, err := s.Register(me, wire.NewUUID().String(), "/tmp/x"); err != syscall.EACCES {
		t.Fatal(err)
	}
	if text := strings.TrimPrefix(log.String(), text); !strings.Contains(text, "directly in /dev/shm") {
		t.Errorf("the log goes on with\n%s", text)
	}
}

func TestFailedRequestsAreLogged(t *testing.T) {
	log := &lines{}
	s, _ := serve(t, Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	q, r := &request{args: wire.Args{FileIno: 7}}, &ring{write: true}
	for range 3 {
		s.noteFailed(r, q, &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})
		s.noteFailed(r, q, os.ErrInvalid)
		s.noteFailed(r, q, syscall.EIO)
	}
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "df -i") || !strings.Contains(text, "dmesg") {
		t.Errorf("the log is\n%s", text)
	}
}
