package measure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// PageService is a "kv3fs pages serve" that was started for a benchmark. It listens on a
// socket, because engines on this machine may look for their service at the usual port.
type PageService struct {
	URL string

	service
	dir string // of the socket
}

// StartPageService starts binary as a page service whose index is below data, which
// stays, and returns when it listens.
func StartPageService(ctx context.Context, binary, data string) (*PageService, error) {
	dir, err := newSocketDir()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "pages")
	s := &PageService{URL: "unix:" + socket, dir: dir}
	if s.process, err = StartChild(binary, "pages", "serve", "--data", data, "--listen", s.URL); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("bench: %w", err)
	}
	err = s.await(ctx, "page service", func() error {
		c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		return c.Close()
	})
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// Stop stops the service and removes its socket.
func (s *PageService) Stop() error { return errors.Join(s.stop(), os.RemoveAll(s.dir)) }
