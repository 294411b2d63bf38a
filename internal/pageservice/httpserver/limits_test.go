package httpserver_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// serveOn runs a server on listeners of its own until the test ends.
func serveOn(t *testing.T, o httpserver.Options, drain time.Duration, addresses ...string) (*service, []*httpserver.Listener, context.CancelFunc, <-chan error) {
	t.Helper()
	x, err := index.Open(journal.New(t.TempDir(), journal.Options{}), index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return serveIndex(t, x, o, drain, addresses...)
}

// serveIndex runs a server of an index until the test ends, and then closes the index.
func serveIndex(t *testing.T, x *index.Index, o httpserver.Options, drain time.Duration, addresses ...string) (*service, []*httpserver.Listener, context.CancelFunc, <-chan error) {
	t.Helper()
	var listeners []*httpserver.Listener
	for _, at := range addresses {
		a, err := httpserver.ParseAddress(at)
		if err != nil {
			t.Fatal(err)
		}
		l, err := httpserver.Listen(a)
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := httpserver.New(x, o)
	done, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		done <- s.Serve(ctx, listeners, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), drain)
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		x.Close()
	})
	return &service{t, x, s, "http://" + listeners[0].Addr().String(), &http.Client{Timeout: patience}}, listeners, cancel, done
}

// TestBodyLimit: a body that is too large gets 413, whether its size is announced or not,
// and is not stored.
func TestBodyLimit(t *testing.T) {
	s := start(t, httpserver.Options{Limits: httpserver.Limits{BodyBytes: 100000}}, pageservice.Options{})
	body := `{"keys":["` + strings.Repeat("k", 200000) + `"]}`
	if status, answer := s.post("/keys/batch_exists", body); status != 413 {
		t.Errorf("announced: %d %s", status, answer)
	}
	w, err := s.http.Post(s.url+"/keys/batch_exists", "application/json", io.MultiReader(strings.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	if w.StatusCode != 413 {
		t.Errorf("chunked: %d", w.StatusCode)
	}
	// A body with a huge announced size costs nothing before it arrives.
	c := s.raw()
	fmt.Fprintf(c, "POST /clear HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000000000000000\r\n\r\n")
	got, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || got.StatusCode != 413 {
		t.Errorf("huge: %v %v", got, err)
	}
	s.want("/keys/batch_exists", `{"keys":["`+strings.Repeat("k", 4096)+`"]}`, 200, `{"exists":[false]}`)
}

// TestBodyLimitIsSeen: a client that sends its whole body before it reads gets 413, not a
// broken pipe.
func TestBodyLimitIsSeen(t *testing.T) {
	s, _, _, _ := serveOn(t, httpserver.Options{Limits: httpserver.Limits{BodyBytes: 100000}}, patience, "127.0.0.1:0")
	body := bytes.Repeat([]byte(" "), 20<<20)
	for name, head := range map[string]string{
		"announced": fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)),
		"chunked":   fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", len(body)),
	} {
		c := s.raw()
		fmt.Fprintf(c, "POST /clear HTTP/1.1\r\nHost: localhost\r\n%s", head)
		if _, err := c.Write(append(body, "\r\n0\r\n\r\n"...)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		w, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || w.StatusCode != 413 {
			t.Errorf("%s: %v %v", name, w, err)
		}
	}
}

// TestSlowBodiesTakeNoSlot: clients that do not send what they announced do not block
// others.
func TestSlowBodiesTakeNoSlot(t *testing.T) {
	s := start(t, httpserver.Options{Limits: httpserver.Limits{Requests: 2}}, pageservice.Options{})
	for range 10 {
		fmt.Fprintf(s.raw(), "POST /clear HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	}
	time.Sleep(50 * time.Millisecond) // so that the server has begun to read
	for range 10 {
		s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	}
}

// TestLargeBodies: large bodies wait for memory that others use; small ones do not wait.
func TestLargeBodies(t *testing.T) {
	limits := httpserver.Limits{LargeBytes: 300 << 10, Work: patience}
	s, log := startSlow(t, limits)
	large := slowBody + strings.Repeat(" ", 200<<10)
	answers := make(chan int)
	send := func(body io.Reader) {
		w, err := s.http.Post(s.url+slowPath, "application/json", body)
		if err != nil {
			t.Error(err)
			answers <- 0
			return
		}
		w.Body.Close()
		answers <- w.StatusCode
	}
	go send(strings.NewReader(large))
	<-log.entered
	go send(io.MultiReader(strings.NewReader(large))) // its head does not say how large it is
	go send(strings.NewReader(slowBody))
	<-log.entered
	select {
	case <-log.entered:
		t.Error("two large ones at once")
	case <-time.After(200 * time.Millisecond):
	}
	log.leave <- struct{}{}
	log.leave <- struct{}{}
	<-log.entered
	log.leave <- struct{}{}
	for range 3 {
		if status := <-answers; status != 200 {
			t.Error(status)
		}
	}
	limits.Work = 200 * time.Millisecond
	s, _ = startSlow(t, limits)
	for range 2 {
		go send(strings.NewReader(large))
	}
	for range 2 {
		if status := <-answers; status != 503 {
			t.Errorf("a body that waits too long: %d", status)
		}
	}
}

func TestBatchLimit(t *testing.T) {
	s := withSomething(t, httpserver.Options{Limits: httpserver.Limits{BatchKeys: 3}})
	for path, body := range map[string]string{
		"/keys/batch_exists":                   `{"keys":["a","b","c","d"]}`,
		"/keys/batch_allocate":                 `{"rank":0,"keys":[["a",""],["b",""],["c",""],["d",""]]}`,
		"/keys/confirm_write":                  `{"rank":0,"confirmations":[],"pages_to_release":[1,2,3,4]}`,
		"/0/confirm_write":                     `{"written_keys_to_confirm":[["r",1],["r",1],["r",1],["r",1]]}`,
		"/0/reserve_and_allocate_page_indices": `{"keys":[["a",""],["b",""],["c",""],["d",""]]}`,
	} {
		if status, answer := s.post(path, body); status != 413 {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	s.want("/keys/batch_exists", `{"keys":["K","b","c"]}`, 200, `{"exists":[true,false,false]}`)
}

// slowLog is a log whose writers wait before they learn the outcome.
type slowLog struct {
	pageservice.Log
	entered, leave chan struct{}
}

func (l *slowLog) Append(done func(error), recs ...[]byte) func(context.Context) error {
	wait := l.Log.Append(done, recs...)
	return func(ctx context.Context) error {
		select {
		case l.entered <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-l.leave:
			return wait(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A request that writes the log, and so waits for a slowLog.
const (
	slowPath = "/keys/batch_allocate"
	slowBody = `{"rank":0,"keys":[["K",""]]}`
)

// startSlow starts a service with rank 0 of vLLM, whose later writers wait.
func startSlow(t *testing.T, limits httpserver.Limits) (*service, *slowLog) {
	t.Helper()
	log := &slowLog{journal.New(t.TempDir(), journal.Options{}), make(chan struct{}, 1), make(chan struct{}, 1)}
	log.leave <- struct{}{}
	s := startWith(t, log, httpserver.Options{Limits: limits}, index.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":100}`)
	<-log.entered
	return s, log
}

// TestConcurrency: requests beyond the bound get 503 at once.
func TestConcurrency(t *testing.T) {
	s, log := startSlow(t, httpserver.Limits{Requests: 4, Work: patience})
	answers := make(chan int)
	for range 2 {
		go func() {
			status, _ := s.post(slowPath, slowBody)
			answers <- status
		}()
		<-log.entered
	}
	s.want(slowPath, slowBody, 503, `{"detail":"too many requests at once"}`)
	if status, _ := s.do("GET", "/healthz", ""); status != 200 {
		t.Errorf("healthz: %d", status)
	}
	close(log.leave)
	for range 2 {
		if status := <-answers; status != 200 {
			t.Errorf("a request within the bound: %d", status)
		}
	}
}

// TestWorkLimit: if the index does not answer, the client gets 503 in time.
func TestWorkLimit(t *testing.T) {
	s, _ := startSlow(t, httpserver.Limits{Work: 50 * time.Millisecond})
	s.want(slowPath, slowBody, 503, `{"detail":"the page index did not answer in time"}`)
}

// TestSlowClients: a client that sends its head or its body byte by byte, or nothing at
// all, is disconnected in time, and leaves nothing behind.
func TestSlowClients(t *testing.T) {
	s, _, _, _ := serveOn(t, httpserver.Options{Limits: httpserver.Limits{Header: 200 * time.Millisecond, Body: 400 * time.Millisecond, Idle: 200 * time.Millisecond}}, patience, "127.0.0.1:0")
	s.ok("/0/initialize", `{"num_pages":4}`)
	s.http.CloseIdleConnections()
	before := runtime.NumGoroutine()
	drops := func(t *testing.T, name, head string, rest string, want string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s.raw()
			_, _ = io.WriteString(c, head)
			stop := make(chan struct{})
			go func() {
				defer close(stop)
				for _, b := range []byte(rest) {
					if _, err := c.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(20 * time.Millisecond)
				}
			}()
			got, err := io.ReadAll(c)
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Error("never disconnected")
			}
			if !strings.Contains(string(got), want) {
				t.Errorf("%q, want %q", got, want)
			}
			c.Close()
			<-stop
		})
	}
	t.Run("all", func(t *testing.T) {
		drops(t, "nothing", "", "", "")
		drops(t, "head", "POST /0/clear HTTP/1.1\r\n", "X-Slow: "+strings.Repeat("z", 200), "")
		drops(t, "body", "POST /0/clear HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", strings.Repeat(" ", 200), "408 Request Timeout")
		drops(t, "chunks", "POST /0/clear HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", strings.Repeat("1\r\n \r\n", 60), "408 Request Timeout")
		drops(t, "half-open", asRequests("/0/exists", `{"keys":["a"]}`), "", `{"exists":[false]}`)
		drops(t, "huge head", "POST /0/clear HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("z", 1<<20), "", "431")
		drops(t, "no HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "", "400")
	})
	soon(t, "their goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
	s.want("/0/exists", `{"keys":["a"]}`, 200, `{"exists":[false]}`)
}

// TestConnectionLimit: a client that may have no more connections loses one that is
// silent; the others work.
func TestConnectionLimit(t *testing.T) {
	s, _, _, _ := serveOn(t, httpserver.Options{Limits: httpserver.Limits{Connections: 8}}, patience, "127.0.0.1:0")
	var all []net.Conn
	for range 5 { // one more than half
		c := s.raw()
		all = append(all, c)
		if !answers(c) {
			t.Fatal("no answer")
		}
	}
	lost := 0
	for _, c := range all {
		if !answers(c) {
			lost++
		}
	}
	if lost != 1 || !answers(all[4]) {
		t.Errorf("%d of 5 connections were closed, want one that is not the last", lost)
	}
}

// answers reports whether a request on a connection is answered.
func answers(c net.Conn) bool {
	_, _ = io.WriteString(c, asRequests("/keys/batch_exists", `{"keys":[]}`))
	w, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, w.Body)
	return err == nil && w.StatusCode == 200
}

// TestStop: a request in progress is answered, and then nothing listens any more.
func TestStop(t *testing.T) {
	s, listeners, cancel, done := serveOn(t, httpserver.Options{}, patience, "127.0.0.1:0", "m2=127.0.0.1:0", "unix:"+filepath.Join(t.TempDir(), "s"))
	s.ok("/0/initialize", `{"num_pages":4}`)
	c := s.raw()
	whole := asRequests("/0/exists", `{"keys":["a"]}`)
	io.WriteString(c, whole[:len(whole)-3])
	time.Sleep(50 * time.Millisecond) // so that the server has begun to read
	cancel()
	time.Sleep(50 * time.Millisecond)
	io.WriteString(c, whole[len(whole)-3:])
	if w, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || w.StatusCode != 200 {
		t.Errorf("%v %v", w, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, l := range listeners {
		if c, err := net.Dial(l.Address.Network, l.Address.Where); err == nil {
			c.Close()
			t.Errorf("%s still accepts connections", l.Address)
		}
	}
}

// TestStopIsAtOnce: no address accepts requests while another finishes those that it has.
func TestStopIsAtOnce(t *testing.T) {
	s, listeners, cancel, done := serveOn(t, httpserver.Options{}, patience, "127.0.0.1:0", "m2=127.0.0.1:0", "m3=127.0.0.1:0")
	c := s.raw()
	whole := asRequests("/keys/batch_exists", `{"keys":["a"]}`)
	io.WriteString(c, whole[:len(whole)-3])
	time.Sleep(50 * time.Millisecond) // so that the server has begun to read
	cancel()
	for _, l := range listeners {
		soon(t, l.Address.String()+" to close", func() bool {
			c, err := net.Dial("tcp", l.Address.Where)
			if err == nil {
				c.Close()
			}
			return err != nil
		})
	}
	select {
	case err := <-done:
		t.Errorf("ended before the request: %v", err)
	default:
	}
	io.WriteString(c, whole[len(whole)-3:])
	if w, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || w.StatusCode != 200 {
		t.Errorf("%v %v", w, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestStopIsBounded: a client that never finishes is disconnected.
func TestStopIsBounded(t *testing.T) {
	s, _, cancel, done := serveOn(t, httpserver.Options{}, 50*time.Millisecond, "127.0.0.1:0")
	c := s.raw()
	io.WriteString(c, "POST /clear HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n ")
	time.Sleep(50 * time.Millisecond)
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("Serve waits for the client")
	}
}

// TestUnixSocket: the group can use the socket; a dead socket is replaced, and nothing
// else is.
func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	_, _, cancel, done := serveOn(t, httpserver.Options{}, patience, "unix:"+path)
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("%v %v", fi, err)
	}
	if _, err := httpserver.NewClient("unix:"+path, "", patience).Stat(t.Context()); err != nil {
		t.Error(err)
	}
	a := httpserver.Address{Network: "unix", Where: path}
	if _, err := httpserver.Listen(a); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a socket in use: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := httpserver.Listen(a); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
}

func TestParseAddress(t *testing.T) {
	for s, want := range map[string]httpserver.Address{
		"127.0.0.1:18000":   {Network: "tcp", Where: "127.0.0.1:18000"},
		":18000":            {Network: "tcp", Where: ":18000"},
		"[::1]:1":           {Network: "tcp", Where: "[::1]:1"},
		"m=localhost:1":     {Namespace: "m", Network: "tcp", Where: "localhost:1"},
		"unix:/run/a=b":     {Network: "unix", Where: "/run/a=b"},
		"m.2=unix:/run/a=b": {Namespace: "m.2", Network: "unix", Where: "/run/a=b"},
	} {
		if got, err := httpserver.ParseAddress(s); err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "18000", "off", "unix:", "=:1", "a b=:1", "a/b=:1", "http://x:1/y", "m=", "m=x"} {
		if a, err := httpserver.ParseAddress(s); err == nil {
			t.Errorf("%q is %+v", s, a)
		}
	}
	for s, open := range map[string]bool{"127.0.0.1:1": false, "localhost:1": false, "[::1]:1": false, "unix:/x": false, ":1": true, "0.0.0.0:1": true, "10.0.0.1:1": true, "host:1": true} {
		if a, _ := httpserver.ParseAddress(s); a.Exposed() != open {
			t.Errorf("%s: open %v", s, a.Exposed())
		}
	}
}

// TestClientErrors: the errors of the client say what to do.
func TestClientErrors(t *testing.T) {
	s := start(t, httpserver.Options{Token: "secret"}, pageservice.Options{})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() // it never accepts
	nobody := "http://127.0.0.1:1"
	for _, c := range []struct{ url, token, want string }{
		{s.url, "", "--token-file"},
		{s.url, "wrong", "--token-file"},
		{nobody, "", "is kv3fs serve running?"},
		{"unix:/nonexistent", "", "is kv3fs serve running?"},
		{"http://" + silent.Addr().String(), "", "did not answer within"},
		{s.url + "/ns/x", "secret", "is not a kv3fs page service"},
		{"://", "", "want http://HOST:PORT"},
	} {
		_, err := httpserver.NewClient(c.url, c.token, 300*time.Millisecond).Stat(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.url, err, c.want)
		}
	}
	if _, err := httpserver.NewClient(s.url+"/", "secret", patience).Stat(t.Context()); err != nil {
		t.Error(err)
	}
}
