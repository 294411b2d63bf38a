package forward_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice/forward"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// patience bounds every wait for something that should happen soon.
const patience = 60 * time.Second

// leaders tells the hosts of a test who leads.
type leaders struct {
	mu    sync.Mutex
	is    forward.Target
	reign context.Context
	end   context.CancelFunc
}

func newLeaders() *leaders {
	l := &leaders{}
	l.reign, l.end = context.WithCancel(context.Background())
	return l
}

func (l *leaders) Leader() (forward.Target, context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.is, l.reign
}

func (l *leaders) set(t forward.Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.is = t
	l.end()
	l.reign, l.end = context.WithCancel(context.Background())
}

// log is a text that goroutines write.
type log struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// await waits until a log says something.
func (l *log) await(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(l.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nobody logged %q:\n%s", text, l)
		}
	}
}

// hostOptions say how a host of a test is set up.
type hostOptions struct {
	name, token        string
	serverTLS, peerTLS *tls.Config // of its listener for hosts, and as their client
	limits             httpserver.Limits
	cluster            string // "": that of all others
	bound              string // a namespace, to which its listener for engines is bound
}

// host is a page service with a listener for engines and one for other hosts. It follows until it leads.
type host struct {
	t      testing.TB
	server *httpserver.Server
	client *forward.Client
	url    string
	target forward.Target
	log    *log
	trust  *log // what its certificates had it log
	http   *http.Client

	readiness atomic.Int64 // how often other hosts have asked
}

func startHost(t testing.TB, l forward.Leaders, o hostOptions) *host {
	t.Helper()
	h := &host{t: t, log: &log{}, http: &http.Client{Timeout: patience, Transport: &http.Transport{}}}
	logger := slog.New(slog.NewTextHandler(h.log, nil))
	h.server = httpserver.New(nil, httpserver.Options{Limits: o.limits, Log: logger})
	me := forward.Identity{Host: o.name, Cluster: "the cluster" + o.cluster, Version: "test"}
	engines := listen(t)
	engines.Address.Namespace = o.bound
	peers := listen(t)
	h.client = forward.New(forward.Options{Identity: me, Address: peers.Address.Where, Token: o.token, TLS: o.peerTLS, Leaders: l, Log: logger})
	h.server.Switch(httpserver.Source{Leader: h.client})
	handler := forward.NewHandler(h.server, forward.HandlerOptions{Identity: me, Token: o.token, Log: logger})
	peers.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			h.readiness.Add(1)
		}
		handler.ServeHTTP(w, r)
	})
	peers.TLS = o.serverTLS
	h.url = "http://" + engines.Address.Where
	h.target = forward.Target{Host: o.name, Address: peers.Address.Where}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- h.server.Serve(ctx, []*httpserver.Listener{engines, peers}, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), patience)
		})
	}()
	t.Cleanup(func() {
		h.http.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		h.client.Close()
	})
	return h
}

func listen(t testing.TB) *httpserver.Listener {
	t.Helper()
	l, err := httpserver.Listen(httpserver.Address{Network: "tcp", Where: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// lead has a host answer from an index of its own.
func (h *host) lead(valid func() bool) *index.Index {
	h.t.Helper()
	x, err := index.Open(journal.New(h.t.TempDir(), journal.Options{}), index.Options{})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { x.Close() })
	h.server.Switch(httpserver.Source{Index: x, Valid: valid})
	return x
}

func (h *host) follow() { h.server.Switch(httpserver.Source{Leader: h.client}) }

func (h *host) do(method, path, body string) (status int, answer string) {
	h.t.Helper()
	r, err := http.NewRequest(method, h.url+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	w, err := h.http.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return w.StatusCode, string(b)
}

func (h *host) want(path, body string, status int, answer string) {
	h.t.Helper()
	if gotStatus, got := h.do(http.MethodPost, path, body); gotStatus != status || got != answer {
		h.t.Errorf("POST %s %s\n got %d %s\nwant %d %s", path, body, gotStatus, got, status, answer)
	}
}

// refused posts a request that must get 503, and returns why.
func (h *host) refused(path, body string) string {
	h.t.Helper()
	status, why := h.do(http.MethodPost, path, body)
	if status != http.StatusServiceUnavailable {
		h.t.Errorf("POST %s: %d %s", path, status, why)
	}
	return why
}

// await repeats a request until its answer is 2xx.
func (h *host) await(path, body string) string {
	h.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		status, answer := h.do(http.MethodPost, path, body)
		if status/100 == 2 {
			return answer
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: still %d %s", path, status, answer)
		}
	}
}

// dumb is a listener that takes connections and answers nothing, like a host that is stopped, until it is
// told to pass them on.
type dumb struct {
	net.Listener
	mu   sync.Mutex
	to   string // "": nowhere
	open []net.Conn
	got  log // what came on connections that are not passed on
	wg   sync.WaitGroup
}

func startDumb(t *testing.T) *dumb {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &dumb{Listener: l}
	d.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.open = append(d.open, c)
			to := d.to
			d.mu.Unlock()
			if to == "" {
				d.wg.Go(func() { _, _ = io.Copy(&d.got, c) })
				continue
			}
			there, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			d.mu.Lock()
			d.open = append(d.open, there)
			d.mu.Unlock()
			d.wg.Go(func() { _, _ = io.Copy(c, there); c.Close() })
			d.wg.Go(func() { _, _ = io.Copy(there, c); there.Close() })
		}
	})
	t.Cleanup(func() {
		l.Close()
		d.cut()
		d.wg.Wait()
	})
	return d
}

// pass has new connections passed on.
func (d *dumb) pass(to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.to = to
}

// cut closes all connections.
func (d *dumb) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.open {
		c.Close()
	}
	d.open = nil
}

// await waits until a text has come.
func (d *dumb) await(t *testing.T, text string) {
	t.Helper()
	d.got.await(t, text)
}

// serveHTTP serves a handler, and returns its address.
func serveHTTP(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
