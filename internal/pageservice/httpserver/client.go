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

// Client asks a page service what the command line wants to know.
type Client struct {
	url   string // as the user gave it
	base  string
	token string
	http  *http.Client
}

// maxAnswerBytes bounds what a client reads.
const maxAnswerBytes = 256 << 20

// NewClient makes a client for http://HOST:PORT or unix:PATH. Each call takes at most
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

// Stat describes all spaces.
func (c *Client) Stat(ctx context.Context) (spaces []pageservice.SpaceState, err error) {
	var a StatAnswer
	err = c.call(ctx, http.MethodGet, "stat", nil, &a)
	return a.Spaces, err
}

// List gives up to limit keys of a space after a key.
func (c *Client) List(ctx context.Context, s pageservice.Space, after string, limit int) ([]pageservice.Entry, error) {
	var a ListAnswer
	err := c.call(ctx, http.MethodPost, "list", AdminRequest{Space: s, After: after, Limit: limit}, &a)
	return a.Entries, err
}

// Evict evicts up to n keys of a space and tells how many it were.
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
		return fmt.Errorf("%q is no URL of a page service: want http://HOST:PORT or unix:PATH", c.url)
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
		return fmt.Errorf("what answers at %s is no page service of kv3fs: %w", c.url, err)
	}
	return nil
}

// explain says what to look at when there is no answer.
func (c *Client) explain(err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("nothing answers at %s: is kv3fs serve running? --url is where it listens, as it logs at its start (%w)", c.url, err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s did not answer within %s: is its disk alive? GET /readyz says (%w)", c.url, c.http.Timeout, err)
	}
	return fmt.Errorf("%s: %w", c.url, err)
}

func (c *Client) refused(status int, body []byte) error {
	var said struct {
		Detail string `json:"detail"`
	}
	switch json.Unmarshal(body, &said); {
	case status == http.StatusUnauthorized:
		return fmt.Errorf("%s wants a token: --token-file names the file that it was started with", c.url)
	case said.Detail == "Not Found":
		return fmt.Errorf("what answers at %s is no page service of kv3fs, or an older one", c.url)
	case said.Detail == "":
		return fmt.Errorf("%s answered %d %s", c.url, status, http.StatusText(status))
	}
	return fmt.Errorf("%s: %s (%d)", c.url, said.Detail, status)
}
