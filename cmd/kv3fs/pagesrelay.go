package main

import (
	"fmt"
	"net"
	"os"
	"strings"

	pagesrelay "github.com/kv3fs/kv3fs/internal/pageservice/relay"
)

// pagesRelayCmd passes connections on to a page service.
type pagesRelayCmd struct {
	Listen string   `default:"127.0.0.1:18000" placeholder:"HOST:PORT" help:"Where engines connect. Only loopback addresses: whoever can connect here can use the service as this process can."`
	To     string   `required:"" placeholder:"HOST:PORT" help:"Where the page service listens: HOST:PORT, or unix:PATH."`
	Log    logFlags `embed:"" prefix:"log-"`
}

// Help is what "kv3fs pages relay --help" adds to the flags.
func (*pagesRelayCmd) Help() string {
	return `For example, beside vLLM in a pod, which asks at localhost:18000 only:

  kv3fs pages relay --to unix:/mnt/3fs/3fs-pages/pages.sock

It reads nothing of what it passes on. Where the service does not take a connection, the engine's is closed, and it sees misses.`
}

// Validate rejects addresses that are none.
func (c *pagesRelayCmd) Validate() error {
	if host, _, err := net.SplitHostPort(c.Listen); err != nil {
		return bad("listen", "%q is not HOST:PORT", c.Listen)
	} else if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return bad("listen", "%s can be reached from other hosts, or pods: give 127.0.0.1", c.Listen)
	}
	if path, ok := strings.CutPrefix(c.To, "unix:"); ok {
		if path == "" {
			return bad("to", "unix: needs the path of a socket")
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(c.To); err != nil {
		return bad("to", "%q is neither HOST:PORT nor unix:PATH", c.To)
	}
	return nil
}

// target returns where the page service listens.
func (c *pagesRelayCmd) target() pagesrelay.Target {
	if path, ok := strings.CutPrefix(c.To, "unix:"); ok {
		return pagesrelay.Target{Network: "unix", Address: path}
	}
	return pagesrelay.Target{Network: "tcp", Address: c.To}
}

// Run relays until ctx ends.
func (c *pagesRelayCmd) Run(ctx serverContext, tell *teller) error {
	lines := c.Log.open(tell, everything)
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("%w: is a page service, or another relay, there already?", err)
	}
	lines.Always().Info("relaying pages", "address", l.Addr().String(), "to", c.To, "pid", os.Getpid())
	return pagesrelay.Run(ctx, l, c.target(), lines.Logger())
}
