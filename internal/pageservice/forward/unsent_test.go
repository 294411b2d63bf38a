package forward_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/pageservice/forward"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// TestUnsent: once a client was told that the leader did not answer, the leader gets no more of its request, which the kernel of
// the client's host would else send when the leader, or the network, can take it again: a confirmation that is late counts for
// whoever has the page then.
func TestUnsent(t *testing.T) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10); err != nil {
				t.Error(err)
			}
		})
	}}
	slow, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			c, err := slow.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	}()
	l := newLeaders()
	b := startHost(t, l, hostOptions{name: "b", token: secret, limits: httpserver.Limits{Work: time.Second}})
	l.set(forward.Target{Host: "a", Address: slow.Addr().String()})
	b.refused("/0/confirm_write", `{"written_keys_to_confirm":[["`+strings.Repeat("k", 60<<10)+`",0]],"the end":0}`)
	slow.Close()
	<-accepted
	all := ""
	for _, c := range open {
		if err := c.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(c) // it ends by a reset
		all += string(text)
		c.Close()
	}
	if !strings.Contains(all, "POST /0/confirm_write") {
		t.Fatalf("the request was not even begun: %.1000q", all)
	}
	if strings.Contains(all, "the end") {
		t.Error("the leader got the whole request after it had failed")
	}
}

// TestBodyIsFree: when Forward has returned, nothing reads the request's body any more.
func TestBodyIsFree(t *testing.T) {
	l := newLeaders()
	b := startHost(t, l, hostOptions{name: "b", token: secret})
	stopped := startDumb(t)
	l.set(forward.Target{Host: "a", Address: stopped.Addr().String()})
	body := []byte(strings.Repeat("x", 8<<20))
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, err := b.client.Forward(ctx, httpserver.Forwarded{Method: "POST", Path: "/0/exists", Body: body})
		cancel()
		if err == nil {
			t.Error("something has answered")
		}
		clear(body) // the race detector sees who reads it
	}
}
