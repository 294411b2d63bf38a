package httpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Client makes the requests of the command line to a page service.
type Client struct {
	url   string // as the user gave it
	base  string
	token string
	http  *http.Client
}

// maxAnswerBytes bounds how much of an answer the client reads.
const maxAnswerBytes = 256 << 20

// NewClient returns a client for http://HOST:PORT or unix:PATH. Each call takes at most
// the timeout.
func NewClient(url, token string, timeout time.Duration) *Client {
	c := &Client{url: url, base: strings.TrimRight(url, "/"), token: token, http: &http.Client{Timeout: timeout}}
	transport := &http.Transport{DisableKeepAlives: true}
	if path, ok := strings.CutPrefix(url, "unix:"); ok {
		c.base = "http://unix"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	c.http.Transport = transport
	return c
}

// Stat returns the state of all spaces.
func (c *Client) Stat(ctx context.Context) (spaces []pageservice.SpaceState, err error) {
	var a StatAnswer
	err = c.call(ctx, http.MethodGet, "stat", nil, &a)
	return a.Spaces, err
}

// Store returns where the page index is kept, and which host leads, as the host sees it that is asked.
func (c *Client) Store(ctx context.Context) (s StoreState, err error) {
	err = c.call(ctx, http.MethodGet, "store", nil, &s)
	return s, err
}

// List returns up to limit keys of a space that follow a key.
func (c *Client) List(ctx context.Context, s pageservice.Space, after string, limit int) ([]pageservice.Entry, error) {
	var a ListAnswer
	err := c.call(ctx, http.MethodPost, "list", AdminRequest{Space: s, After: after, Limit: limit}, &a)
	return a.Entries, err
}

// Evict evicts up to n keys of a space and returns how many it evicted.
func (c *Client) Evict(ctx context.Context, s pageservice.Space, n int) (int, error) {
	var a EvictAnswer
	err := c.call(ctx, http.MethodPost, "evict", AdminRequest{Space: s, Keys: n}, &a)
	return a.Evicted, err
}

// Clear forgets all keys of a space.
func (c *Client) Clear(ctx context.Context, s pageservice.Space) error {
	var none struct{}
	return c.call(ctx, http.MethodPost, "clear", AdminRequest{Space: s}, &none)
}

// Forget forgets a rank and its pages.
func (c *Client) Forget(ctx context.Context, s pageservice.Space, rank int) error {
	var none struct{}
	return c.call(ctx, http.MethodPost, "forget", AdminRequest{Space: s, Rank: &rank}, &none)
}

func (c *Client) call(ctx context.Context, method, name string, q, answer any) error {
	var body io.Reader = http.NoBody
	if q != nil {
		b, err := json.Marshal(q)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+adminPrefix+name, body)
	if err != nil {
		return fmt.Errorf("%q is not the URL of a page service: want http://HOST:PORT or unix:PATH", c.url)
	}
	if q != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	w, err := c.http.Do(r)
	if err != nil {
		return c.explain(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(io.LimitReader(w.Body, maxAnswerBytes))
	if err != nil {
		return c.explain(err)
	}
	if w.StatusCode != http.StatusOK {
		return c.refused(w.StatusCode, b)
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return fmt.Errorf("the server at %s is not a kv3fs page service: %w", c.url, err)
	}
	return nil
}

// explain adds to an error what the user should check.
func (c *Client) explain(err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("no page service at %s: %w; is kv3fs serve running? When it starts, it logs the address to give to --url", c.url, err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s did not answer within %s: %w; does its disk work? GET /readyz tells", c.url, c.http.Timeout, err)
	}
	return fmt.Errorf("%s: %w", c.url, err)
}

func (c *Client) refused(status int, body []byte) error {
	var said struct {
		Detail string `json:"detail"`
	}
	_ = json.Unmarshal(body, &said) // a body that is not ours has no detail
	switch {
	case status == http.StatusUnauthorized:
		return fmt.Errorf("%s refused the token: --token-file must name the file that the service was started with", c.url)
	case said.Detail == "Not Found":
		return fmt.Errorf("the server at %s is not a kv3fs page service, or an older one", c.url)
	case said.Detail == "":
		return fmt.Errorf("%s answered %d %s", c.url, status, http.StatusText(status))
	}
	return fmt.Errorf("%s: %s (%d)", c.url, said.Detail, status)
}
