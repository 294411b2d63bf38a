package httpserver_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// hog is a user other than root, in hog tests.
const hog = 54321

// rawAs opens a connection whose socket belongs to a user.
func (s *service) rawAs(uid int) net.Conn {
	s.t.Helper()
	d := net.Dialer{Timeout: patience, Control: func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) { err = syscall.Fchown(int(fd), uid, -1) }); cerr != nil {
			return cerr
		}
		return err
	}}
	c, err := d.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// needRoot skips a test that has to give sockets to other users.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("gives sockets to other users, which needs root")
	}
}

// TestHogOfConnections: silent connections of one user lock nobody out, and not even the
// user itself.
func TestHogOfConnections(t *testing.T) {
	needRoot(t)
	// The deadlines are beyond patience: only the bound can help.
	limits := httpserver.Limits{Connections: 64, Header: 3 * patience, Body: 3 * patience}
	s, _, _, _ := serveOn(t, httpserver.Options{Limits: limits}, patience, "127.0.0.1:0")
	for range 100 {
		s.rawAs(hog)
	}
	for range 10 {
		if !answers(s.raw()) {
			t.Fatal("another user is not served")
		}
	}
	if !answers(s.rawAs(hog)) {
		t.Error("the user itself is not served")
	}
	// Connections on which a request has begun stay, and leave room for others.
	for range 100 {
		_, _ = io.WriteString(s.rawAs(hog), "P")
	}
	if !answers(s.raw()) {
		t.Fatal("another user is not served beside those that have begun")
	}
}

// TestHogOfSlowBodies: bodies of one user that do not come take no memory from others,
// and are given up soon.
func TestHogOfSlowBodies(t *testing.T) {
	needRoot(t)
	large := `{"keys":[]` + strings.Repeat(" ", 1<<20) + `}`
	head := fmt.Sprintf("POST /keys/batch_exists HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", len(large))
	slow := func(s *service, n int) (all []net.Conn) {
		for range n {
			c := s.rawAs(hog)
			_, _ = io.WriteString(c, head+"{")
			all = append(all, c)
		}
		return all
	}
	t.Run("others", func(t *testing.T) {
		// The deadlines are beyond patience: only the budget can help.
		limits := httpserver.Limits{LargeBytes: 16 << 20, Body: 3 * patience, Grace: 3 * patience, Work: 2 * patience}
		s, _, _, _ := serveOn(t, httpserver.Options{Limits: limits}, patience, "127.0.0.1:0")
		slow(s, 17)
		for range 5 {
			c := s.raw()
			go func() { _, _ = io.WriteString(c, head+large) }()
			if w, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || w.StatusCode != 200 {
				t.Fatal(w, err)
			}
			c.Close()
		}
	})
	t.Run("deadline", func(t *testing.T) {
		limits := httpserver.Limits{LargeBytes: 16 << 20, Body: 3 * patience, Grace: 100 * time.Millisecond}
		s, _, _, _ := serveOn(t, httpserver.Options{Limits: limits}, patience, "127.0.0.1:0")
		for _, c := range slow(s, 8) {
			if w, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || w.StatusCode != 408 {
				t.Fatal(w, err)
			}
		}
		s.want("/keys/batch_exists", large, 200, `{"exists":[]}`)
	})
}

// TestHogOfRequests: requests of one user that take long leave room for those of others.
func TestHogOfRequests(t *testing.T) {
	needRoot(t)
	log := &slowLog{journal.New(t.TempDir(), journal.Options{}), make(chan struct{}, 1), make(chan struct{}, 1)}
	x, err := index.Open(log, index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log.leave <- struct{}{}
	if _, err := x.Initialize(t.Context(), pageservice.Space{Set: pageservice.VLLM}, 0, pageservice.RankOptions{NumPages: 100}); err != nil {
		t.Fatal(err)
	}
	<-log.entered
	s, _, _, _ := serveIndex(t, x, httpserver.Options{Limits: httpserver.Limits{Requests: 8, Work: patience}}, patience, "127.0.0.1:0")
	defer close(log.leave)
	for i := range 8 {
		c := s.rawAs(hog)
		_, _ = io.WriteString(c, asRequests(slowPath, fmt.Sprintf(`{"rank":0,"keys":[["%d",""]]}`, i)))
		if i < 4 {
			<-log.entered
			continue
		}
		if w, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || w.StatusCode != 503 {
			t.Fatal(w, err)
		}
	}
	if !answers(s.raw()) {
		t.Error("another user is not served")
	}
}
