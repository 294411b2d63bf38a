package web

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// ErrInUse says that something else listens at the address, most likely another daemon of this host.
var ErrInUse = errors.New("address in use")

// Exposed reports whether other hosts can reach HOST:PORT.
func Exposed(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback())
}

// Listen listens at HOST:PORT. Errors are ErrInUse, or another of the address.
func Listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("admin address %s: %w: another kv3fs daemon of this host has it, or another program (ss -ltnp says which)", address, ErrInUse)
	case err != nil:
		return nil, fmt.Errorf("admin address %s: %w", address, err)
	}
	return l, nil
}
