package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/logpace"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// Target is a host that takes requests.
type Target struct {
	Host    string
	Address string // HOST:PORT of its listener for other hosts
}

// Leaders tells who leads, as far as this host knows. It may be wrong for a while.
type Leaders interface {
	// Leader returns the leader, a zero Target while none is known, and a context that ends
	// when that changes.
	Leader() (t Target, reign context.Context)
}

// Options are the options of New.
type Options struct {
	Identity
	Address string // where other hosts reach this one
	Token   string // to show; "": none
	TLS     *tls.Config
	Leaders Leaders
	Log     *slog.Logger
}

const (
	// pingEvery is how often the leader is asked whether it is there. It keeps a connection open where
	// proxies and firewalls close those that are idle, commonly after a minute or more.
	pingEvery = time.Second
	// pingTimeout is after how long without an answer the leader is taken for one that does not answer. Until it does,
	// requests are refused at once: an engine waits for each of them.
	pingTimeout = 3 * time.Second
)

// Errors of Forward. The text of others names the leader.
var (
	// ErrNoLeader: no host is known to lead.
	ErrNoLeader = errors.New("no host is known to lead the page service; one is elected within seconds if most members of etcd work")
	// ErrMine: this host is to lead, but does not answer yet.
	ErrMine = errors.New("this host is about to lead the page service")
	// ErrNoReader: a host runs a kv3fs that reads no files for others: an older one, or one that serves pages alone.
	ErrNoReader = errors.New("it does not say what it reads")
	// errChanged ends requests to a host that leads no more.
	errChanged = errors.New("the page service's leader has changed")
)

// Client has the leader answer requests. It implements httpserver.Forwarder. Its methods may be called
// at once.
type Client struct {
	Options
	pool pool
	pace logpace.Pace
	end  context.CancelFunc
	done chan struct{}

	mu     sync.Mutex
	silent error // why the leader that was asked last did not answer; nil: it did
	of     Target
	// refused is why the last leader that said anything takes no requests of this host's; nil: it does.
	refused   error
	refusedAt time.Duration // SinceBoot
}

var _ httpserver.Forwarder = (*Client)(nil)

// New returns a client, which looks after the leader until Close.
func New(o Options) *Client {
	c := &Client{Options: o, done: make(chan struct{})}
	var ctx context.Context
	ctx, c.end = context.WithCancel(context.Background())
	go func() {
		defer close(c.done)
		c.watch(ctx)
	}()
	return c
}

// Close ends the connections. No Forward may be under way.
func (c *Client) Close() {
	c.end()
	<-c.done
	c.pool.keep(Target{})
}

// watch pings whoever leads.
func (c *Client) watch(ctx context.Context) {
	for ctx.Err() == nil {
		to, reign := c.Leaders.Leader()
		c.pool.keep(to)
		reign, cancel := context.WithCancel(reign)
		stop := context.AfterFunc(ctx, cancel)
		c.watchOne(reign, to)
		stop()
		cancel()
	}
}

// watchOne pings one leader until ctx ends.
func (c *Client) watchOne(ctx context.Context, to Target) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		if to.Address != "" && to.Host != c.Host {
			err := c.ping(ctx, to)
			if ctx.Err() == nil {
				c.note(to, err)
			}
		}
		c.pool.keep(to)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (c *Client) ping(ctx context.Context, to Target) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	_, err := c.send(ctx, to, httpserver.Forwarded{Method: http.MethodGet, Path: pingPath})
	return err
}

// note keeps the outcome of a ping.
func (c *Client) note(to Target, err error) {
	c.mu.Lock()
	was, of, now := c.silent, c.of, host.SinceBoot()
	c.silent, c.of = err, to
	switch {
	case err == nil:
		c.refused = nil
	case isRefusal(err):
		c.refused, c.refusedAt = err, now
	}
	c.mu.Unlock()
	switch {
	case err == nil && (was != nil || of != to):
		c.Log.Info("requests go to the leader of the page service", "leader", to.Host, "address", to.Address)
	case err != nil:
		if more, now := c.pace.Log(to.Host + err.Error()); now {
			c.Log.Warn("the leader of the page service does not take requests: engines get 503, and compute what they would have read", "leader", to.Host, "err", err, "more", more)
		}
	}
}

// State returns why a leader does not answer, as far as is known; nil: it does, or there is none.
func (c *Client) State() error {
	to, _ := c.Leaders.Leader()
	return c.known(to)
}

// Refused returns why a leader took no requests of this host's some time ago at most, and none has since; nil: that is not so.
func (c *Client) Refused(within time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if host.SinceBoot()-c.refusedAt > within {
		return nil
	}
	return c.refused
}

func (c *Client) known(to Target) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of != to {
		return nil
	}
	return c.silent
}

// Visible asks a host, which need not lead, what it reads of a file that this host has written. ErrNoReader: it does not answer such questions.
func (c *Client) Visible(ctx context.Context, to Target, question []byte) (answer []byte, err error) {
	a, err := c.send(ctx, to, httpserver.Forwarded{Method: http.MethodPost, Path: visiblePath, Body: question})
	switch {
	case err != nil:
		return nil, err
	case a.Status == http.StatusNotFound || a.Status == http.StatusMisdirectedRequest:
		return nil, fmt.Errorf("%s: %w", to.Host, ErrNoReader)
	case a.Status != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", to.Host, bytes.TrimSpace(a.Body))
	}
	return a.Body, nil
}

// Forward has the leader answer a request. It tries twice at most: again at the next leader, or where the first
// connection was cut, and only if the request was not sent, or may be executed twice.
func (c *Client) Forward(ctx context.Context, q httpserver.Forwarded) (httpserver.Answer, error) {
	a, err, again := c.try(ctx, q)
	if again && ctx.Err() == nil {
		a, err, _ = c.try(ctx, q)
	}
	return a, err
}

// try sends a request to whoever leads now. again reports, of a request without an answer, that it may be sent
// again now.
func (c *Client) try(ctx context.Context, q httpserver.Forwarded) (a httpserver.Answer, err error, again bool) {
	to, reign := c.Leaders.Leader()
	switch {
	case to.Address == "":
		return a, ErrNoLeader, false
	case to.Host == c.Host && to.Address != c.Address:
		return a, c.twin(to), false
	case to.Host == c.Host:
		return a, ErrMine, false
	}
	if err := c.known(to); err != nil {
		return a, err, false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(reign, func() { cancel(errChanged) })()
	a, err = c.send(ctx, to, q)
	switch {
	case err == nil && a.Status == http.StatusMisdirectedRequest:
		return httpserver.Answer{}, fmt.Errorf("%s is said to lead the page service, and does not, or not yet", to.Host), c.isOther(to)
	case err == nil:
		return a, nil, false
	case context.Cause(ctx) == errChanged:
		return a, errChanged, q.Again || isDial(err)
	case ctx.Err() != nil:
		return a, fmt.Errorf("the leader of the page service, %s, did not answer in time", to.Host), false
	}
	if isDial(err) { // nobody got it
		return a, err, c.isOther(to)
	}
	return a, err, q.Again && !isRefusal(err)
}

// twin says that a host with this one's name leads elsewhere.
func (c *Client) twin(to Target) error {
	return fmt.Errorf("a host with this one's identity %q leads the page service at %s, and this one is at %s: give each host another --identity; if this host has led there, it is forgotten within seconds", c.Host, to.Address, c.Address)
}

// isOther reports whether another host than to leads now.
func (c *Client) isOther(to Target) bool {
	now, _ := c.Leaders.Leader()
	return now != to
}

// send sends a request to a host, and returns its answer.
func (c *Client) send(ctx context.Context, to Target, q httpserver.Forwarded) (a httpserver.Answer, err error) {
	r, err := http.NewRequest(q.Method, (&url.URL{Scheme: "http", Host: to.Address, Path: q.Path}).String(), bytes.NewReader(q.Body))
	if err != nil {
		return a, fmt.Errorf("address %q of %s: %w", to.Address, to.Host, err)
	}
	c.Identity.sign(r.Header)
	h := r.Header
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "kv3fs")
	h.Set(headerTo, to.Host)
	h.Set(headerClient, q.Client)
	if q.Bound != "" {
		h.Set(headerNamespace, q.Bound)
	}
	if c.Token != "" {
		h.Set("Authorization", "Bearer "+c.Token)
	}
	n := c.pool.take(to)
	if n == nil {
		if n, err = dial(ctx, to.Address, c.TLS); err != nil {
			return a, explain(to, err)
		}
	}
	if q.Sending != nil {
		if err := q.Sending(); err != nil {
			c.pool.give(to, n)
			return a, err
		}
	}
	w, body, kept, err := n.ask(ctx, r)
	if kept {
		c.pool.give(to, n)
	} else {
		_ = n.Close() // what has not been sent is dropped
	}
	if err != nil {
		return a, explain(to, err)
	}
	if err := c.strange(to, w, body); err != nil {
		return a, err
	}
	return httpserver.Answer{Status: w.StatusCode, Body: body}, nil
}
