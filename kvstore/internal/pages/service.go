package pages

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	// batchKeys is how many keys one request has.
	batchKeys = 512
	// maxAnswerBytes bounds what is read of an answer.
	maxAnswerBytes = 4 << 20
	// connections are open at once, and stay open for keepIdle when idle: not as long as
	// the service keeps them, which is five minutes.
	connections = 32
	keepIdle    = time.Minute
	// firstPause is the pause before a request is repeated. It doubles each time, up to
	// lastPause.
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
)

// service is a client of the page service.
type service struct {
	url   string // as it was given, without the password
	base  string // what precedes the path
	ours  string // what precedes the name of a route of the rank, in the path
	space string
	set   string
	pool  string
	pages int64
	http  *http.Client
}

// address returns what precedes the path in a URL, and a transport that connects to it.
func address(given string) (base string, transport *http.Transport, err error) {
	transport = &http.Transport{
		MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections,
		IdleConnTimeout: keepIdle, DisableCompression: true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	base = given
	if path, ok := strings.CutPrefix(given, "unix:"); ok {
		base = "http://unix"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", nil, fmt.Errorf("kvstore: pages: %q is no URL of a page service: want http://HOST:PORT or unix:PATH", redacted(given))
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return "", nil, fmt.Errorf("kvstore: pages: %q has a path: give the service's address alone, the store makes its own namespace", redacted(given))
	}
	return strings.TrimRight(base, "/"), transport, nil
}

// redacted returns a URL without its password.
func redacted(given string) string {
	if u, err := url.Parse(given); err == nil {
		return u.Redacted()
	}
	return given
}

func newService(o *Options, l label) (*service, error) {
	base, transport, err := address(o.URL)
	if err != nil {
		return nil, err
	}
	return &service{
		url:  redacted(o.URL),
		base: base, ours: fmt.Sprintf("/ns/%s/%d/", l.spaceName(), l.rank),
		space: l.spaceName(), set: fmt.Sprintf("sglang/%s/%d", l.poolName(), l.rank),
		pool: l.poolName(), pages: l.pages,
		http: &http.Client{Transport: transport},
	}, nil
}

func (c *service) close() { c.http.CloseIdleConnections() }

// patience says whether a request is repeated while the service is away or busy.
type patience bool

const (
	// once: only if the service had closed the connection.
	once patience = false
	// patient: until the context ends.
	patient patience = true
)

// errUnknown says that the service does not know the rank, or no longer does.
var errUnknown = errors.New("the page service does not know the rank")

// request is call, but registers the rank again with a service that has lost its index.
func (c *service) request(ctx context.Context, p patience, route string, body []byte, answer any) error {
	err := c.call(ctx, p, route, body, answer)
	if errors.Is(err, errUnknown) {
		if err = c.initialize(ctx); err == nil {
			err = c.call(ctx, p, route, body, answer)
		}
	}
	return err
}

// call sends a request until there is an answer, or an error that does not pass, or ctx
// ends.
func (c *service) call(ctx context.Context, p patience, route string, body []byte, answer any) error {
	pause := firstPause
	var before error // of the attempt before
	for attempt := 0; ; attempt++ {
		err := c.once(ctx, route, body, answer)
		if ctx.Err() != nil && before != nil {
			err = before
		}
		before = err
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && endOf(ctx) != errLate:
			return endOf(ctx)
		case errors.Is(err, errLate):
			return fmt.Errorf("%w: the page service at %s", errLate, c.url)
		case ctx.Err() != nil:
			return fmt.Errorf("%w: the page service at %s: %w", errLate, c.url, err)
		case !worthAnother(err) || p == once && attempt > 0:
			return fmt.Errorf("kvstore: the page service at %s: %w", c.url, err)
		}
		if attempt == 0 && p == once {
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, lastPause)
	}
}

// refused is an error that the service has answered.
type refused struct {
	status int
	detail string
}

func (r *refused) Error() string { return fmt.Sprintf("%s (%d)", r.detail, r.status) }

// worthAnother reports whether the same request may succeed soon. Every request of ours
// may be sent twice: the second reservation of a key ends by itself.
func worthAnother(err error) bool {
	var r *refused
	if errors.As(err, &r) {
		return r.status == http.StatusServiceUnavailable
	}
	return !errors.Is(err, errUnknown) && !errors.Is(err, errNonsense)
}

// errNonsense says that a server answered that is not a page service.
var errNonsense = errors.New("the answer is not that of a page service")

func (c *service) once(ctx context.Context, route string, body []byte, answer any) error {
	if !strings.HasPrefix(route, "/") {
		route = c.ours + route
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+route, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	w, err := c.http.Do(r)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("nothing answers there; is kv3fs serve running? (%w)", err)
	}
	if err != nil {
		return err
	}
	defer w.Body.Close()
	text, err := io.ReadAll(io.LimitReader(w.Body, maxAnswerBytes))
	switch {
	case err != nil:
		return err
	case w.StatusCode == http.StatusNoContent && answer == nil:
		return nil
	case w.StatusCode == http.StatusOK && answer != nil:
		if err := json.Unmarshal(text, answer); err != nil {
			return fmt.Errorf("%w: %s: %w", errNonsense, route, err)
		}
		return nil
	}
	return explain(w.StatusCode, text)
}

// explain returns the error for an answer that is not a success.
func explain(status int, text []byte) error {
	var said struct {
		Detail string `json:"detail"`
	}
	_ = json.Unmarshal(text, &said)
	switch {
	case status == http.StatusUnauthorized:
		return &refused{status, "it wants a token: http://kv3fs:TOKEN@HOST:PORT"}
	case status == http.StatusNotFound && (strings.Contains(said.Detail, "not initialized") || strings.HasPrefix(said.Detail, "there are no keys of set")):
		return errUnknown
	case status == http.StatusNotFound:
		return &refused{status, "it knows no namespaces; its address must be bound to none"}
	case said.Detail == "":
		return &refused{status, http.StatusText(status)}
	}
	return &refused{status, said.Detail}
}
