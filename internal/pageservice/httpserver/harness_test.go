package httpserver_test

import (
	"bytes"
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
)

// patience bounds every wait for something that should be there soon.
const patience = 20 * time.Second

// service is a door to a real book, on a real port.
type service struct {
	t    testing.TB
	book pageservice.Book
	door *httpserver.Door
	url  string
	http *http.Client
}

// start starts a service on an embedded book.
func start(t testing.TB, o httpserver.Options, times pageservice.Options) *service {
	t.Helper()
	book, err := index.Open(t.TempDir(), index.Options{Options: times})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { book.Close() })
	return startOn(t, book, o, "")
}

// startOn starts a service on a book, bound to a namespace. What the handlers still
// do when the test ends is waited for.
func startOn(t testing.TB, book pageservice.Book, o httpserver.Options, namespace string) *service {
	t.Helper()
	d := httpserver.New(book, o)
	server := httptest.NewServer(d.Handler(namespace))
	t.Cleanup(server.Close)
	return &service{t, book, d, server.URL, &http.Client{Timeout: patience, Transport: server.Client().Transport}}
}

// post sends a body and returns status and answer.
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

// want sends a body and compares status and answer.
func (s *service) want(path, body string, status int, answer string) {
	s.t.Helper()
	if gotStatus, got := s.post(path, body); gotStatus != status || got != answer {
		s.t.Errorf("POST %s %s\n got %d %s\nwant %d %s", path, short(body), gotStatus, got, status, answer)
	}
}

// ok sends bodies that must be answered 200 or 204.
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

// state is everything that the book says of itself, as text to compare. Times and
// counters of asking are left out.
func (s *service) state() string {
	s.t.Helper()
	spaces, err := s.book.Stat(s.t.Context())
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
