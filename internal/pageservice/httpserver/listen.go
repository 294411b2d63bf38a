package httpserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Address is where to listen, and for which namespace.
type Address struct {
	Namespace string // "" is the default one
	Network   string // tcp or unix
	Where     string // HOST:PORT or a path
}

// ParseAddress parses [NAME=]HOST:PORT or [NAME=]unix:PATH.
func ParseAddress(s string) (Address, error) {
	a := Address{Network: "tcp", Where: s}
	if name, rest, ok := strings.Cut(s, "="); ok && !strings.HasPrefix(s, "unix:") {
		if !ValidNamespace(name) {
			return a, fmt.Errorf("address %q: namespace %q: want 1 to %d letters, digits, '.', '_' or '-'", s, name, maxNamespaceBytes)
		}
		a.Namespace, a.Where = name, rest
	}
	if path, ok := strings.CutPrefix(a.Where, "unix:"); ok {
		if path == "" {
			return a, fmt.Errorf("address %q: \"unix:\" has no path behind it", s)
		}
		a.Network, a.Where = "unix", path
		return a, nil
	}
	if _, _, err := net.SplitHostPort(a.Where); err != nil {
		return a, fmt.Errorf("address %q: want HOST:PORT or unix:PATH, optionally with NAME= before it", s)
	}
	return a, nil
}

// String returns the address in the form that a client needs.
func (a Address) String() string {
	s := "http://" + a.Where
	if a.Network == "unix" {
		s = "unix:" + a.Where
	}
	if a.Namespace != "" {
		s += " (namespace " + a.Namespace + ")"
	}
	return s
}

// Host returns the host of an address that has one.
func (a Address) Host() string {
	if a.Network == "unix" {
		return ""
	}
	host, _, _ := net.SplitHostPort(a.Where) // ParseAddress has checked it
	return host
}

// Exposed reports whether other hosts can reach the address.
func (a Address) Exposed() bool {
	if a.Network == "unix" {
		return false
	}
	host, _, _ := net.SplitHostPort(a.Where)
	ip := net.ParseIP(host)
	return host != "localhost" && (ip == nil || !ip.IsLoopback())
}

// Listener listens at an address.
type Listener struct {
	net.Listener
	Address Address
	// Handler answers what arrives here; nil: the server's own, for the namespace of the
	// address.
	Handler http.Handler
	// TLS of what arrives here; nil: none.
	TLS *tls.Config
}

// Stay has the path of a listener stay when it is closed: another process listens there, or will.
func (l *Listener) Stay() {
	if u, ok := l.Listener.(*unixListener); ok {
		u.stay.Store(true)
	}
}

// SyscallConn returns the descriptor, for who keeps it over a restart.
func (l *Listener) SyscallConn() (syscall.RawConn, error) {
	c, ok := l.beneath().(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("the listener of %s has no descriptor", l.Address)
	}
	return c.SyscallConn()
}

// beneath returns the listener of package net.
func (l *Listener) beneath() net.Listener {
	if u, ok := l.Listener.(*unixListener); ok {
		return u.Listener
	}
	return l.Listener
}

// setDeadline has Accept return then; zero: never.
func (l *Listener) setDeadline(at time.Time) {
	if d, ok := l.beneath().(interface{ SetDeadline(time.Time) error }); ok {
		_ = d.SetDeadline(at) // one that is closed accepts nothing
	}
}

// Adopt listens at an address with the descriptor of a listener that another process has left. It takes a copy.
func Adopt(a Address, from *os.File) (*Listener, error) {
	l, err := net.FileListener(from)
	if err != nil {
		return nil, fmt.Errorf("page service at %s: the listener that was handed over: %w", a, err)
	}
	switch at := l.(type) {
	case *net.UnixListener:
		at.SetUnlinkOnClose(false) // the name would be that under which it was made
		return &Listener{Listener: &unixListener{Listener: at, path: a.Where}, Address: a}, nil
	case *net.TCPListener:
		a.Where = at.Addr().String()
	}
	return &Listener{Listener: l, Address: a}, nil
}

// Listen listens at an address. Closing the listener of a path removes the path.
func Listen(a Address) (*Listener, error) {
	var l net.Listener
	var err error
	if a.Network == "unix" {
		l, err = listenUnix(a.Where)
	} else {
		l, err = net.Listen("tcp", a.Where)
	}
	if err != nil {
		return nil, fmt.Errorf("page service at %s: %w", a, err)
	}
	if a.Network == "tcp" {
		a.Where = l.Addr().String() // port 0 has become one
	}
	return &Listener{Listener: l, Address: a}, nil
}

// socketMode lets the group of the user connect.
const socketMode = 0o660

// listenUnix makes the socket in a directory that only this user can enter, and moves it
// into place, so that no client can connect before it has its mode.
func listenUnix(path string) (net.Listener, error) {
	if err := removeDead(path); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the name would be that under which it was made
	if err = os.Chmod(made, socketMode); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		_ = l.Close() // err is the first error
		return nil, err
	}
	return &unixListener{Listener: l, path: path}, nil
}

// dialTimeout bounds the search for a process that listens at a socket.
const dialTimeout = time.Second

// removeDead removes a socket at which no process listens any more, and nothing else.
func removeDead(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is no socket; remove it or choose another path", path)
	}
	c, err := net.DialTimeout("unix", path, dialTimeout)
	if err == nil {
		c.Close()
		return fmt.Errorf("%s: another process listens there; stop it or choose another path", path)
	}
	return os.Remove(path)
}

type unixListener struct {
	net.Listener
	path string
	stay atomic.Bool
}

func (l *unixListener) Close() error {
	if l.stay.Load() {
		return l.Listener.Close()
	}
	return errors.Join(l.Listener.Close(), os.Remove(l.path))
}
