package csi

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Paths are where a plugin and kubelet find each other.
type Paths struct {
	Endpoint     string // socket of the plugin
	Registration string // socket by which kubelet finds it; "": none
	State        string // what is published
}

// DefaultPaths are those below kubelet's directory.
func DefaultPaths(kubelet, name string) Paths {
	own := filepath.Join(kubelet, "plugins", name)
	return Paths{
		Endpoint:     filepath.Join(own, "csi.sock"),
		Registration: filepath.Join(kubelet, "plugins_registry", name+"-reg.sock"),
		State:        filepath.Join(own, "state"),
	}
}

// mostSocketPath is how long the path of a unix socket may be.
const mostSocketPath = 107

// listen listens at a unix socket that root alone may use, in place of one that a plugin which has ended left behind.
func listen(path string) (net.Listener, error) {
	if len(path) > mostSocketPath {
		return nil, fmt.Errorf("socket %s: its path is longer than the %d bytes that the kernel takes: choose a shorter one", path, mostSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return nil, fmt.Errorf("another plugin serves %s: stop it, or give this one another --endpoint and --registration", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("socket %s, which a former plugin left: %w", path, err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return l, nil
}
