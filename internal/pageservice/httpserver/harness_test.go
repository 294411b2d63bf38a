package httpserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// patience bounds every wait for something that should be there soon.
const patience = 20 * time.Second

// service is a server of a real index, on a real port.
type service struct {
	t      testing.TB
	index  *index.Index
	server *httpserver.Server
	url    string
	http   *http.Client
}

// start starts a service on an empty index, which has a journal.
func start(t testing.TB, o httpserver.Options, times pageservice.Options) *service {
	t.Helper()
	return startWith(t, journal.New(t.TempDir(), journal.Options{}), o, index.Options{Options: times})
}

// startWith starts a service on an index with a given log.
func startWith(t testing.TB, log pageservice.Log, o httpserver.Options, indexOptions index.Options) *service {
	t.Helper()
	x, err := index.Open(log, indexOptions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return startOn(t, x, o, "")
}

// startOn starts a service on an index, bound to a namespace. The end of the test waits
// for its handlers.
func startOn(t testing.TB, x *index.Index, o httpserver.Options, namespace string) *service {
	t.Helper()
	s := httpserver.New(x, o)
	server := httptest.NewServer(s.Handler(namespace))
	t.Cleanup(server.Close)
	return &service{t, x, s, server.URL, &http.Client{Timeout: patience, Transport: server.Client().Transport}}
}

// post sends a body and returns the status and the answer.
func (s *service) post(path, body string) (status int, answer string) {
	s.t.Helper()
	return s.do(http.MethodPost, path, body)
}

func (s *service) do(method, path, body string) (status int, answer string) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	w, err := s.http.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(b) > 0 && !json.Valid(b) {
		s.t.Errorf("%s %s: the answer is no JSON: %q", method, path, b)
	}
	return w.StatusCode, string(b)
}

// want sends a body and compares the status and the answer.
func (s *service) want(path, body string, status int, answer string) {
	s.t.Helper()
	if gotStatus, got := s.post(path, body); gotStatus != status || got != answer {
		s.t.Errorf("POST %s %s\n got %d %s\nwant %d %s", path, short(body), gotStatus, got, status, answer)
	}
}

// ok sends a body that must be answered with 200 or 204.
func (s *service) ok(path, body string) (answer string) {
	s.t.Helper()
	status, answer := s.post(path, body)
	if status/100 != 2 {
		s.t.Fatalf("POST %s %s: %d %s", path, short(body), status, answer)
	}
	return answer
}

func short(s string) string {
	if len(s) > 200 {
		return s[:200] + "..."
	}
	return s
}

// raw opens a connection of its own.
func (s *service) raw() net.Conn {
	s.t.Helper()
	c, err := net.DialTimeout("tcp", strings.TrimPrefix(s.url, "http://"), patience)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// state returns the state of all spaces as text to compare, without times and counters.
func (s *service) state() string {
	s.t.Helper()
	spaces, err := s.index.Stat(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	var b bytes.Buffer
	for _, sp := range spaces {
		sp.Counters = pageservice.Counters{}
		sp.Leased = 0
		line, _ := json.Marshal(sp)
		b.Write(append(line, '\n'))
	}
	return b.String()
}

// listen has the service serve an address of its own, as a daemon does, until stop is called.
func (s *service) listen() (stop func()) {
	s.t.Helper()
	l, err := httpserver.Listen(httpserver.Address{Network: "tcp", Where: "127.0.0.1:0"})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- s.server.Serve(ctx, []*httpserver.Listener{l}, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), patience)
		})
	}()
	s.url = "http://" + l.Address.Where
	return func() {
		s.http.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
}
