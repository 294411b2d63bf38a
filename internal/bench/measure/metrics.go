package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// StartMetered is StartDaemon for a daemon whose metrics are read. It has a page service, at a socket that nobody
// else looks for.
func StartMetered(ctx context.Context, binary, scratch, mode string, flags ...string) (*Daemon, error) {
	dir, err := newSocketDir() // not below scratch
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "pages")
	d, err := startDaemon(ctx, binary, scratch, mode, "unix:"+socket, flags)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	d.socket = socket
	return d, nil
}

// Metric reads a metric without labels of a daemon that StartMetered has started.
func (d *Daemon) Metric(ctx context.Context, name string) (value float64, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("bench: the daemon's metric %s: %w", name, err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	metrics, err := d.metrics(ctx)
	if err != nil {
		return 0, err
	}
	defer metrics.Close()
	for lines := bufio.NewScanner(metrics); ; {
		if !lines.Scan() {
			return 0, errors.Join(errors.New("there is none"), lines.Err())
		}
		if text, is := strings.CutPrefix(lines.Text(), name+" "); is {
			return strconv.ParseFloat(text, 64)
		}
	}
}

// metrics asks for all metrics.
func (d *Daemon) metrics(ctx context.Context) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/metrics", nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.socket)
	}}}
	reply, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	return reply.Body, nil
}

// Scrape reads all metrics of such a daemon.
func (d *Daemon) Scrape(ctx context.Context) error {
	metrics, err := d.metrics(ctx)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, metrics)
	return errors.Join(err, metrics.Close())
}
