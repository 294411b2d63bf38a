package httpserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// Before a process is replaced, what was begun is answered, what comes later waits, connections without a request are closed, and if
// nothing comes of it all goes on.
func TestHoldBack(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	defer s.listen()()
	s.ok("/0/initialize", `{"num_pages":8}`)

	idle, begun := s.raw(), s.raw()
	const body = `{"keys":[["K",""]]}`
	head := fmt.Sprintf("POST /0/reserve_and_allocate_page_indices HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
	ask := func(c net.Conn, text string) {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	answered := func(c net.Conn) {
		t.Helper()
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, a.Body) // it leaves the connection
		a.Body.Close()
		if a.StatusCode != http.StatusOK {
			t.Errorf("status %d", a.StatusCode)
		}
	}
	ask(idle, head+body)
	answered(idle)
	ask(begun, head+body[:1])
	ping := s.raw() // by the time that this is answered, the server has most likely read the head above
	ask(ping, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	answered(ping)

	short, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
	resume, err := s.server.HoldBack(short)
	end()
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := s.server.HoldBack(t.Context()); err == nil {
		t.Error("requests are held back twice")
	}
	resume()

	quiet := make(chan error, 1)
	go func() {
		var err error
		resume, err = s.server.HoldBack(t.Context())
		quiet <- err
	}()
	if n, err := idle.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("a connection without a request: %d, %v", n, err)
	}
	late := s.raw()
	ask(late, head+body)
	ask(begun, body[1:])
	answered(begun)
	if err := <-quiet; err != nil {
		t.Error(err)
	}
	if err := late.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if n, err := late.Read(make([]byte, 1)); n != 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a request that is held back gets %d bytes, %v", n, err)
	}
	if err := late.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	resume()
	answered(late)
	s.ok("/0/exists", `{"keys":["K"]}`)

	// A stop waits for nobody who is held back.
	if _, err := s.server.HoldBack(t.Context()); err != nil {
		t.Error(err)
	}
}
