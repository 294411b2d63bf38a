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

// listenAll listens at paths. Nothing is listened at an empty one. The process may make no other file meanwhile.
func listenAll(paths ...string) (all []net.Listener, err error) {
	for _, path := range paths {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); path != "" && err != nil {
			return nil, fmt.Errorf("socket %s: %w", path, err)
		}
	}
	before := syscall.Umask(0o177) // root's alone, from the first moment on
	defer syscall.Umask(before)
	for _, path := range paths {
		var l net.Listener
		if path != "" {
			if l, err = listen(path); err != nil {
				for _, l := range all {
					if l != nil {
						l.Close()
					}
				}
				return nil, err
			}
		}
		all = append(all, l)
	}
	return all, nil
}

// listen listens at a unix socket, in place of one that a plugin which has ended left behind.
func listen(path string) (net.Listener, error) {
	if len(path) > mostSocketPath {
		return nil, fmt.Errorf("socket %s: its path is longer than the %d bytes that the kernel takes: choose a shorter one", path, mostSocketPath)
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
	return l, nil
}
