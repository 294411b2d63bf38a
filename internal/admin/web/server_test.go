package web

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }

// start starts a server with a metric of its own.
func start(t *testing.T, o Options) *Server {
	t.Helper()
	registry := prometheus.NewRegistry()
	count := prometheus.NewCounter(prometheus.CounterOpts{Name: "kv3fs_tried_total", Help: "Tries."})
	count.Add(7)
	registry.MustRegister(count)
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	o.Metrics, o.Version, o.Log = registry, "v9", slog.New(slog.DiscardHandler)
	s, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// get asks and returns the status and the text.
func get(t *testing.T, c *http.Client, url string, change func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	a, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(b)
}

// client returns a client whose connections end with the test.
func client(t *testing.T, c *tls.Config) *http.Client {
	transport := &http.Transport{TLSClientConfig: c}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

func TestRoutes(t *testing.T) {
	s, c := start(t, Options{}), client(t, nil)
	for path, want := range map[string]string{
		"/healthz": "ok\n", "/readyz": "ready\n", "/metrics": "kv3fs_tried_total 7", "/": "kv3fs v9",
	} {
		if status, text := get(t, c, s.URL()+path, nil); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d %q", path, status, text)
		}
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/profile", "/nothing"} {
		if status, text := get(t, c, s.URL()+path, nil); status != http.StatusNotFound {
			t.Errorf("%s: %d %q", path, status, text)
		}
	}
	if a, err := c.Post(s.URL()+"/metrics", "text/plain", nil); err != nil || a.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v %v", a, err)
	} else {
		a.Body.Close()
	}
}

func TestOpenMetrics(t *testing.T) {
	s, c := start(t, Options{}), client(t, nil)
	_, text := get(t, c, s.URL()+"/metrics", func(r *http.Request) {
		r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	})
	if !strings.HasSuffix(text, "# EOF\n") {
		t.Errorf("%q", text)
	}
}

func TestProfiles(t *testing.T) {
	s, c := start(t, Options{Profiles: true}), client(t, nil)
	for path, want := range map[string]string{"/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "goroutine profile", "/debug/pprof/cmdline": "web.test"} {
		if status, text := get(t, c, s.URL()+path, nil); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d %.100q", path, status, text)
		}
	}
}

// Everything but health and readiness needs the token where there is one.
func TestToken(t *testing.T) {
	s, c := start(t, Options{Token: "secret", Profiles: true}), client(t, nil)
	for _, path := range []string{"/metrics", "/", "/debug/pprof/", "/nothing"} {
		if status, text := get(t, c, s.URL()+path, nil); status != http.StatusUnauthorized || strings.Contains(text, "tried") {
			t.Errorf("%s without a token: %d %q", path, status, text)
		}
		status, _ := get(t, c, s.URL()+path, func(r *http.Request) { r.Header.Set("Authorization", "Bearer secreT") })
		if status != http.StatusUnauthorized {
			t.Errorf("%s with a wrong token: %d", path, status)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, _ := get(t, c, s.URL()+path, nil); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
	}
	for name, show := range map[string]func(*http.Request){
		"bearer": func(r *http.Request) { r.Header.Set("Authorization", "bearer secret") },
		"basic":  func(r *http.Request) { r.SetBasicAuth("anybody", "secret") },
		"name":   func(r *http.Request) { r.Host = "kv3fs.example"; r.Header.Set("Authorization", "Bearer secret") },
	} {
		if status, text := get(t, c, s.URL()+"/metrics", show); status != http.StatusOK {
			t.Errorf("%s: %d %q", name, status, text)
		}
	}
}

// A web page whose name was made to resolve to this host reads nothing.
func TestOtherNames(t *testing.T) {
	s, c := start(t, Options{}), client(t, nil)
	for host, want := range map[string]int{
		"evil.example": http.StatusForbidden, "evil.example:9180": http.StatusForbidden, "localhost.evil.example": http.StatusForbidden, "127.0.0.1.evil.example": http.StatusForbidden,
		"localhost": http.StatusOK, "LOCALHOST:9180": http.StatusOK, "127.0.0.1:1": http.StatusOK, "[::1]:9180": http.StatusOK,
	} {
		if status, text := get(t, c, s.URL()+"/metrics", func(r *http.Request) { r.Host = host }); status != want {
			t.Errorf("%s: %d %q", host, status, text)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, o := range []struct {
		Options
		want string
	}{
		{Options{Address: "9180"}, "not HOST:PORT"},
		{Options{Address: ":9180"}, "token"},
		{Options{Address: "0.0.0.0:9180", TLS: &tls.Config{}}, "token"},
		{Options{Address: "[::]:9180", Token: "x"}, "certificate"},
		{Options{Address: "kv3fs.example:9180", Token: "x"}, "certificate"},
		{Options{Address: "10.1.2.3:9180", Token: "x", TLS: &tls.Config{}}, ""},
		{Options{Address: "127.0.0.1:9180"}, ""},
		{Options{Address: "127.9.9.9:9180"}, ""},
		{Options{Address: "[::1]:9180"}, ""},
		{Options{Address: "localhost:9180"}, ""},
	} {
		err := o.Validate()
		if o.want == "" && err != nil || o.want != "" && (err == nil || !strings.Contains(err.Error(), o.want)) {
			t.Errorf("%s: %v", o.Address, err)
		}
	}
}

func TestAddressInUse(t *testing.T) {
	s := start(t, Options{})
	_, err := Start(Options{Address: s.at.Addr().String(), Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), s.at.Addr().String()) {
		t.Fatal(err)
	}
}

// Every part that cannot serve is named, a part that does not answer as well.
func TestReady(t *testing.T) {
	var data error
	s := start(t, Options{Ready: []Check{
		{"data directory", func(context.Context) error { return data }},
		{"space", func(context.Context) error { return nil }},
		{"page service", func(ctx context.Context) error {
			if data == nil {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}},
	}})
	c := client(t, nil)
	if status, text := get(t, c, s.URL()+"/readyz", nil); status != http.StatusOK {
		t.Errorf("%d %q", status, text)
	}
	data = errors.New("it hangs")
	status, text := get(t, c, s.URL()+"/readyz", nil)
	if want := "data directory: it hangs\npage service: context deadline exceeded\n"; status != http.StatusServiceUnavailable || text != want {
		t.Errorf("%d %q", status, text)
	}
}

// Clients that keep more connections open than there may be hold up neither others nor a stop.
func TestSlowClients(t *testing.T) {
	s, c := start(t, Options{}), client(t, nil)
	for range 2 * s.open.most {
		silent, err := net.Dial("tcp", s.at.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		if _, err := io.WriteString(silent, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(silent, make([]byte, 15)); err != nil {
			t.Fatal(err)
		}
	}
	if status, _ := get(t, c, s.URL()+"/metrics", nil); status != http.StatusOK {
		t.Errorf("%d", status)
	}
	ended := make(chan struct{})
	go func() { s.Close(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("Close waits for clients")
	}
}

// Clients that dial all at once and say nothing, of which others are closed for them, do not get more connections than there may be; with TLS as well.
func TestFlood(t *testing.T) {
	shown, _ := certified(t)
	for name, o := range map[string]Options{"plain": {}, "TLS": {TLS: shown}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, o)
			var mu sync.Mutex
			var all []net.Conn
			var dials sync.WaitGroup
			for range 16 {
				dials.Go(func() {
					for range 100 {
						c, err := net.Dial("tcp", s.at.Addr().String())
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						all = append(all, c)
						mu.Unlock()
						s.open.mu.Lock()
						open, kept := s.open.open, s.open.open-len(s.open.closed)
						s.open.mu.Unlock()
						if open > 2*s.open.most || kept > s.open.most {
							t.Errorf("%d connections are open, of which %d are to stay", open, kept)
							return
						}
					}
				})
			}
			dials.Wait()
			for _, c := range all {
				c.Close()
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				s.open.mu.Lock()
				open, closed, idle := s.open.open, len(s.open.closed), s.open.idle.Len()
				s.open.mu.Unlock()
				if open+closed+idle == 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%d connections are still counted, %d as closed, %d as idle", open, closed, idle)
				}
			}
		})
	}
}

// Nothing is asked for any more once Close has returned.
func TestCloseWaits(t *testing.T) {
	asked, ended := make(chan struct{}), false
	s := start(t, Options{Ready: []Check{{"slow", func(ctx context.Context) error {
		close(asked)
		<-ctx.Done()
		ended = true
		return ctx.Err()
	}}}})
	go func() {
		if a, err := http.Get(s.URL() + "/readyz"); err == nil {
			a.Body.Close()
		}
	}()
	<-asked
	s.Close()
	if !ended {
		t.Error("a check goes on")
	}
}

// slow is a metric that takes until it is released.
type slow struct{ asked, release, done chan struct{} }

func (s slow) Describe(chan<- *prometheus.Desc) {}
func (s slow) Collect(chan<- prometheus.Metric) {
	close(s.asked)
	<-s.release
	close(s.done)
}

func TestCloseWaitsForScrapes(t *testing.T) {
	c := slow{make(chan struct{}), make(chan struct{}), make(chan struct{})}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	s, err := Start(Options{Address: "127.0.0.1:0", Metrics: registry, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	caller, err := net.Dial("tcp", s.at.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(caller, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-c.asked
	caller.Close()
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	select {
	case <-closed:
		t.Fatal("Close has returned while metrics are collected")
	case <-time.After(50 * time.Millisecond):
	}
	close(c.release)
	<-closed
	select {
	case <-c.done:
	default:
		t.Error("Close has returned before the metrics were collected")
	}
}

// certified returns what a server shows, and the certificate in it.
func certified(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, trusted
}

func TestTLS(t *testing.T) {
	shown, trusted := certified(t)
	s := start(t, Options{TLS: shown})
	if status, text := get(t, client(t, &tls.Config{RootCAs: trusted}), s.URL()+"/healthz", nil); status != http.StatusOK {
		t.Errorf("%d %q", status, text)
	}
	if a, err := client(t, nil).Get(strings.Replace(s.URL(), "https", "http", 1) + "/metrics"); err == nil {
		if a.StatusCode == http.StatusOK {
			t.Error("answered without TLS")
		}
		a.Body.Close()
	}
}

// A browser gets the page, without the token, which the page asks for; other programs get the list of paths.
func TestDashboard(t *testing.T) {
	browser := func(r *http.Request) { r.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8") }
	s, c := start(t, Options{Token: "secret", API: http.NotFoundHandler()}), client(t, nil)
	for _, path := range []string{"/", "/dashboard/main.js"} {
		if status, text := get(t, c, s.URL()+path, browser); status != http.StatusOK || !strings.Contains(text, "/api/v1") && !strings.Contains(text, "Poll") {
			t.Errorf("%s: %d %.100q", path, status, text)
		}
	}
	if status, _ := get(t, c, s.URL()+"/", nil); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}
	if status, _ := get(t, c, s.URL()+"/metrics", browser); status != http.StatusUnauthorized {
		t.Errorf("metrics without a token: %d", status)
	}
	s = start(t, Options{})
	for _, path := range []string{"/dashboard/", "/dashboard/main.js"} {
		if status, _ := get(t, c, s.URL()+path, browser); status != http.StatusNotFound {
			t.Errorf("%s without an API: %d", path, status)
		}
	}
}
