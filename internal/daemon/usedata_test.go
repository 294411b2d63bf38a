package daemon

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/health"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
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
