// Package relay passes connections on to a page service that listens elsewhere: vLLM asks at localhost:18000 only, and in a pod
// that is nobody's but the pod's. It reads nothing of what it passes on.
package relay

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/logpace"
)

const (
	// mostConnections bounds the open ones. Further clients wait.
	mostConnections = 1024
	// dialTime is how long the service may take to take a connection.
	dialTime = 5 * time.Second
)

// Target is where the page service listens.
type Target struct {
	Network string // "tcp" or "unix"
	Address string
}

// Run passes on what connects to l until ctx ends or l fails. It closes l, and returns when everything has ended.
func Run(ctx context.Context, l net.Listener, to Target, log *slog.Logger) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	serving.Go(func() {
		<-ctx.Done()
		_ = l.Close() // Accept reports it
	})
	r := relay{to: to, log: log}
	room := make(chan struct{}, mostConnections)
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		client, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = client.Close() // nothing was said on it
			}
			return nil
		case err != nil:
			return err
		}
		serving.Go(func() {
			defer func() { <-room }()
			r.pass(ctx, client)
		})
	}
}

type relay struct {
	to   Target
	log  *slog.Logger
	pace logpace.Pace
}

// pass connects a client with the service until either has gone or ctx ends.
func (r *relay) pass(ctx context.Context, client net.Conn) {
	defer client.Close()
	d := net.Dialer{Timeout: dialTime}
	service, err := d.DialContext(ctx, r.to.Network, r.to.Address)
	if err != nil {
		if suppressed, now := r.pace.Log("dial"); now && ctx.Err() == nil {
			r.log.Warn("the page service does not take connections; engines see misses until it does", "address", r.to.Address, "err", err, "suppressed", suppressed)
		}
		return
	}
	defer service.Close()
	var copying sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	for _, way := range [][2]net.Conn{{service, client}, {client, service}} {
		copying.Go(func() {
			_, err := io.Copy(way[0], way[1])
			half, ok := way[0].(interface{ CloseWrite() error })
			if err != nil || !ok || half.CloseWrite() != nil {
				cancel() // the other way has nobody any more
			}
		})
	}
	copied := make(chan struct{})
	go func() {
		copying.Wait()
		close(copied)
	}()
	select {
	case <-copied:
	case <-ctx.Done():
	}
	cancel()
	_ = client.Close() // what is still being copied ends
	_ = service.Close()
	<-copied
}
