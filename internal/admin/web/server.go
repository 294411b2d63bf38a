package web

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kv3fs/kv3fs/internal/admin/dashboard"
	"github.com/kv3fs/kv3fs/internal/bearer"
)

// What clients can take.
const (
	mostConnections = 128
	mostScrapes     = 4
	headTime        = 5 * time.Second
	idleTime        = 2 * time.Minute
	headBytes       = 16 << 10
	// sendTime is how long an answer may take to be read. A profile may take longer to be made.
	sendTime    = time.Minute
	profileTime = 5 * time.Minute
)

// Options are the options of Start.
type Options struct {
	// Address is HOST:PORT.
	Address string
	// Listener is what listens there; nil: Start does. It is the server's from then on, whatever Start returns.
	Listener net.Listener
	// Token is what clients must present; "": none.
	Token string
	// TLS is what the server shows; nil: none.
	TLS *tls.Config
	// Metrics are what /metrics answers.
	Metrics prometheus.Gatherer
	// Ready are what /readyz asks.
	Ready []Check
	// API answers below /api/v1/; nil: nobody does, and there is no dashboard.
	API http.Handler
	// Profiles turns /debug/pprof on.
	Profiles bool
	// Version is the daemon's.
	Version string
	Log     *slog.Logger
}

// Validate reports options that would show the daemon to other hosts without a token and TLS.
func (o Options) Validate() error {
	_, _, err := net.SplitHostPort(o.Address)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not HOST:PORT", o.Address)
	case Exposed(o.Address) && o.Token == "":
		return fmt.Errorf("%s can be reached from other hosts and needs a token, or use 127.0.0.1", o.Address)
	case Exposed(o.Address) && o.TLS == nil:
		return fmt.Errorf("%s can be reached from other hosts and needs a certificate, or use 127.0.0.1", o.Address)
	}
	return nil
}

// Server serves until Close.
type Server struct {
	o      Options
	access atomic.Pointer[access]
	http   *http.Server
	at     net.Listener
	scrape http.Handler
	open   connections
	served sync.WaitGroup // of Serve
}

// Start listens and begins to serve. Errors are those of Validate, and ErrInUse or another of the address.
func Start(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		if o.Listener != nil {
			o.Listener.Close()
		}
		return nil, err
	}
	s := &Server{o: o, open: connections{most: roomForConnections()}}
	s.SetAccess(o.Token, o.TLS)
	// Without promhttp's Timeout, which leaves a scrape to itself when its client has gone: Close waits for all of them.
	s.scrape = promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{
		EnableOpenMetrics: true, MaxRequestsInFlight: mostScrapes, ErrorHandling: promhttp.ContinueOnError,
	})
	if s.at = o.Listener; s.at == nil {
		var err error
		if s.at, err = Listen(o.Address); err != nil {
			return nil, err
		}
	}
	s.http = &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: headTime, ReadTimeout: headTime, WriteTimeout: sendTime, IdleTimeout: idleTime, MaxHeaderBytes: headBytes,
		ConnState: s.open.note,
		ErrorLog:  slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), // what clients do wrong is theirs
	}
	var from net.Listener = bounded{s.at, &s.open}
	if o.TLS != nil {
		from = tls.NewListener(from, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.access.Load().tls, nil }})
	}
	s.served.Go(func() {
		if err := s.http.Serve(from); !errors.Is(err, http.ErrServerClosed) {
			o.Log.Error("metrics, health and readiness cannot be asked for any more, until a restart", "address", s.URL(), "err", err)
		}
	})
	return s, nil
}

// access says who may ask.
type access struct {
	token bearer.Token
	tls   *tls.Config
}

// SetAccess has further requests need another token, and further connections show another certificate. tls is nil if and only if that of
// Options was.
func (s *Server) SetAccess(token string, tls *tls.Config) {
	s.access.Store(&access{bearer.NewToken(token), tls})
}

// HasToken reports whether clients need a token now.
func (s *Server) HasToken() bool { return s.access.Load().token != nil }

// HasTLS reports whether the address is one of TLS.
func (s *Server) HasTLS() bool { return s.o.TLS != nil }

// URL is where the server is found.
func (s *Server) URL() string {
	scheme := "http"
	if s.o.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + s.at.Addr().String()
}

// Close ends the server and cuts off whoever is still asking: what is asked for is not used any more once it returns.
// A nil server does nothing.
func (s *Server) Close() {
	if s == nil {
		return
	}
	_ = s.http.Close() // clients that are cut off see it
	s.served.Wait()
	s.open.wait()
}

func (s *Server) handler() http.Handler {
	open := http.NewServeMux() // without a token
	open.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	open.HandleFunc("GET /readyz", s.readyz)
	rest := http.NewServeMux()
	rest.Handle("GET /metrics", s.scrape)
	rest.HandleFunc("GET /{$}", s.index)
	if s.o.API != nil {
		rest.Handle("/api/", s.o.API) // it says itself what methods there are
	}
	if s.o.Profiles {
		for path, do := range map[string]http.HandlerFunc{"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
			rest.HandleFunc("GET /debug/pprof/"+path, patiently(do))
		}
	}
	page := dashboard.Handler() // has no secrets: it asks for the token and sends it to the API
	if s.o.API != nil {
		open.Handle(dashboard.Prefix, page)
	}
	open.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		token := s.access.Load().token
		switch {
		case s.o.API != nil && r.URL.Path == "/" && strings.Contains(r.Header.Get("Accept"), "text/html"): // a browser
			w.Header().Set("Vary", "Accept")
			page.ServeHTTP(w, r)
		case !bearer.Allows(token, r):
			w.Header().Set("WWW-Authenticate", `Bearer realm="kv3fs"`)
			say(w, http.StatusUnauthorized, "the token is missing or wrong")
		case token == nil && !namesLoopback(r.Host):
			say(w, http.StatusForbidden, fmt.Sprintf("the request is for %q, which is not this address: a web page may have sent it", r.Host))
		default:
			rest.ServeHTTP(w, r)
		}
	})
	return open
}

// namesLoopback reports whether a request is for a loopback address by an address or as localhost. A web page whose name was
// made to resolve to this host (DNS rebinding) can read what it has asked for, but names itself.
func namesLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}

// patiently gives a handler more time to answer.
func patiently(do http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(profileTime)) // the server's own holds otherwise
		do(w, r)
	}
}

// index says what there is.
func (s *Server) index(w http.ResponseWriter, _ *http.Request) {
	text := "kv3fs " + s.o.Version + "\n\n/metrics   what the daemon counts, for Prometheus\n/healthz   whether the process lives\n/readyz    whether it can serve, and why not\n"
	if s.o.API != nil {
		text += "/api/v1/   what the daemon knows, as JSON; openapi.yaml there describes it\n/          the same as a page, in a browser\n"
	}
	if s.o.Profiles {
		text += "/debug/pprof/   profiles of the process\n"
	}
	say(w, http.StatusOK, strings.TrimSuffix(text, "\n"))
}

// say answers with a text.
func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // a client that has gone sees it
}
