package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

// ErrNoDaemon is the error of a state directory in which no daemon listens.
var ErrNoDaemon = errors.New("no daemon of this host listens there")

// Client calls a daemon. Its methods may be called concurrently.
type Client struct {
	http     http.Client
	path     string // of the socket
	patience time.Duration
}

// Dial returns the client of the daemon whose socket is in one of these state directories: hosts
// that share a disk have one each, and of them only this host's daemon answers. patience bounds the
// wait for each part of an answer. The caller closes it.
func Dial(ctx context.Context, dirs []string, patience time.Duration) (*Client, error) {
	var dead, errs []error
	for _, dir := range dirs {
		c, err := dial(ctx, dir)
		switch {
		case err == nil:
			c.Close()
			return newClient(dir, patience), nil
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
			dead = append(dead, err)
		default:
			errs = append(errs, err)
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(errs) > 0:
		return nil, errors.Join(errs...)
	}
	return nil, fmt.Errorf("%w (%d sockets of others)", ErrNoDaemon, len(dead))
}

func newClient(dir string, patience time.Duration) *Client {
	return &Client{path: filepath.Join(dir, SocketName), patience: patience, http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := dial(ctx, dir)
			if err != nil {
				return nil, err
			}
			return &impatient{c, patience}, nil
		},
		DisableKeepAlives: true,
	}}}
}

func dial(ctx context.Context, dir string) (c net.Conn, err error) {
	err = through(dir, func(short string) error {
		c, err = (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(short, SocketName))
		return err
	})
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("the daemon's socket in %s: %w: run this as root or as the daemon's user", dir, err)
	}
	return c, err
}

// impatient is a connection each of whose reads and writes has a deadline.
type impatient struct {
	net.Conn
	patience time.Duration
}

// Read reads within the patience.
func (c *impatient) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write writes within the patience.
func (c *impatient) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close ends all connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// values sends a request and calls fn with each value of the answer.
func values[V any](ctx context.Context, c *Client, name string, request any, fn func(V) error) error {
	if err := ask(ctx, c, name, request, fn); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return nil
}

func ask[V any](ctx context.Context, c *Client, name string, request any, fn func(V) error) error {
	body, err := encode(request)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kv3fs/v1/"+name, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return c.failed(errors.Unwrap(err)) // without the URL, which says nothing
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return fmt.Errorf("the daemon at %s knows no %q: it is of another version than this command; restart it with this version", c.path, name)
	default:
		text, _ := io.ReadAll(io.LimitReader(answer.Body, lineBytes))
		return fmt.Errorf("the daemon at %s: %s", c.path, strings.TrimSpace(string(text)))
	}
	lines := json.NewDecoder(bufio.NewReaderSize(answer.Body, lineBytes))
	for {
		var m message
		switch err := lines.Decode(&m); {
		case err != nil:
			return c.failed(err)
		case m.Error != "":
			return errors.New(m.Error)
		case m.End:
			return nil
		}
		var v V
		if err := m.decode(&v); err != nil {
			return c.failed(err)
		}
		if err := fn(v); err != nil {
			return err
		}
	}
}

// mostShown bounds an answer of the daemon's API.
const mostShown = 64 << 20

// Show asks the daemon's API for a document, by its path below api.Prefix with its query, and puts it into v.
func (c *Client) Show(ctx context.Context, path string, v any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kv3fs"+api.Prefix+path, nil)
	if err != nil {
		return err
	}
	answer, err := c.http.Do(r)
	if err == nil {
		defer answer.Body.Close()
		err = c.shown(answer, path, v)
	} else {
		err = c.failed(errors.Unwrap(err)) // without the URL, which says nothing
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (c *Client) shown(answer *http.Response, path string, v any) error {
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostShown))
	if err != nil {
		return c.failed(err)
	}
	if answer.StatusCode == http.StatusOK {
		if err := api.Decode(text, v); err != nil {
			return c.failed(err)
		}
		return nil
	}
	var why api.Failure
	switch err := api.Decode(text, &why); {
	case err == nil && why.Cure != "":
		return fmt.Errorf("the daemon at %s: %s: %s", c.path, why.Error, why.Cure)
	case err == nil:
		return fmt.Errorf("the daemon at %s: %s", c.path, why.Error)
	case answer.StatusCode == http.StatusNotFound:
		return fmt.Errorf("the daemon at %s knows no %s: it is of another version than this command; restart it with this version", c.path, api.Prefix+path)
	}
	return fmt.Errorf("the daemon at %s: %s", c.path, strings.TrimSpace(string(text)))
}

// errCutOff says that an answer ended before its end.
var errCutOff = errors.New("has cut the answer off: it stops, or has too many clients")

// failed says that an answer is not whole.
func (c *Client) failed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the daemon at %s has not answered for %v: it hangs, or its disk does, or is stopped", c.path, c.patience)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the daemon at %s %w", c.path, errCutOff)
	}
	return fmt.Errorf("the daemon at %s: %w", c.path, err)
}

func collect[V any](ctx context.Context, c *Client, name string, request any) ([]V, error) {
	all := []V{}
	err := values(ctx, c, name, request, func(v V) error {
		all = append(all, v)
		return nil
	})
	return all, err
}

func one[V any](ctx context.Context, c *Client, name string, request any) (V, error) {
	var zero V
	all, err := collect[V](ctx, c, name, request)
	switch {
	case err != nil:
		return zero, err
	case len(all) != 1:
		return zero, c.failed(fmt.Errorf("%d values in place of one", len(all)))
	}
	return all[0], nil
}

func nothing(ctx context.Context, c *Client, name string, request any) error {
	return values(ctx, c, name, request, func(none) error { return nil })
}

// State returns what there is, and what has gone.
func (c *Client) State(ctx context.Context) (keeper.State, error) {
	return one[keeper.State](ctx, c, "state", none{})
}

// Curve returns what caches of other sizes would have served.
func (c *Client) Curve(ctx context.Context) (Curve, error) {
	return one[Curve](ctx, c, "curve", none{})
}

// Usage calls fn with what a directory takes, and those at most that deep below it.
func (c *Client) Usage(ctx context.Context, dir string, depth int, fn func(keeper.Usage) error) error {
	return values(ctx, c, "usage", usageRequest{dir, depth}, fn)
}

// Groups returns what the files below a directory take by owner and model.
func (c *Client) Groups(ctx context.Context, dir string) ([]keeper.Group, error) {
	return collect[keeper.Group](ctx, c, "groups", pathRequest{dir})
}

// List calls fn with the files that a query asks for.
func (c *Client) List(ctx context.Context, q keeper.Query, fn func(keeper.Listed) error) error {
	return values(ctx, c, "list", q, fn)
}

// Describe says all that is known of a file or directory.
func (c *Client) Describe(ctx context.Context, at string) (keeper.Description, error) {
	return one[keeper.Description](ctx, c, "describe", pathRequest{at})
}

// Total adds up the files of a selection.
func (c *Client) Total(ctx context.Context, s keeper.Selection) (keeper.Total, error) {
	return one[keeper.Total](ctx, c, "total", s)
}

// Evict removes the files of a selection that may go, and calls fn with each.
func (c *Client) Evict(ctx context.Context, s keeper.Selection, dryRun bool, fn func(keeper.Removal) error) error {
	return values(ctx, c, chosen("evict", s.Narrows()), evictRequest{s, dryRun}, fn)
}

// Quotas returns all quotas.
func (c *Client) Quotas(ctx context.Context) ([]keeper.Quota, error) {
	return collect[keeper.Quota](ctx, c, "quotas", none{})
}

// SetQuota limits a directory.
func (c *Client) SetQuota(ctx context.Context, dir string, bytes int64) error {
	return nothing(ctx, c, "set-quota", quotaRequest{dir, bytes})
}

// RemoveQuota ends the quota of a directory.
func (c *Client) RemoveQuota(ctx context.Context, dir string) error {
	return nothing(ctx, c, "remove-quota", pathRequest{dir})
}

// TTLs returns all TTLs.
func (c *Client) TTLs(ctx context.Context) ([]keeper.TTL, error) {
	return collect[keeper.TTL](ctx, c, "ttls", none{})
}

// SetTTL has files go that were not used for so long; 0 ends that.
func (c *Client) SetTTL(ctx context.Context, pattern string, unused time.Duration) error {
	return nothing(ctx, c, "set-ttl", ttlRequest{pattern, unused})
}

// Pins returns all pins.
func (c *Client) Pins(ctx context.Context) ([]keeper.Pin, error) {
	return collect[keeper.Pin](ctx, c, "pins", none{})
}

// Pin keeps what patterns match, of an origin.
func (c *Client) Pin(ctx context.Context, patterns []string, of keeper.Origin) error {
	return nothing(ctx, c, chosen("pin", of != keeper.Origin{}), pinsRequest{patterns, of})
}

// Unpin ends such pins.
func (c *Client) Unpin(ctx context.Context, patterns []string, of keeper.Origin) error {
	return nothing(ctx, c, chosen("unpin", of != keeper.Origin{}), pinsRequest{patterns, of})
}
