package pagesoak

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

const (
	startLimit = 30 * time.Second
	stopLimit  = 30 * time.Second
)

// needMounts skips a test with -short, and ends it where nothing can be mounted.
func needMounts(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: the test starts daemons and takes many seconds")
	}
	daemontest.NeedMounts(t)
}

// daemon starts a daemon with a mount.
func daemon(t *testing.T, flags ...string) *daemontest.Daemon {
	t.Helper()
	return daemontest.ServeWith(t, daemontest.Options{Flags: append([]string{"--drain", "2s"}, flags...)})
}

// service is a process that serves pages, and can be killed and started again.
type service struct {
	command []string
	address string
	child   *measure.Child
}

// launch starts a service. At the end of the test it must stop without an error.
func launch(t *testing.T, name, address string, command ...string) *service {
	t.Helper()
	s := &service{command: command, address: address}
	if err := s.start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := s.child.Stop(stopLimit); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if t.Failed() {
			t.Logf("the last lines of %s:\n%s", name, s.child.LastOutput())
		}
	})
	return s
}

// start starts the process and waits until it listens.
func (s *service) start() (err error) {
	if s.child, err = measure.StartChild(s.command[0], s.command[1:]...); err != nil {
		return err
	}
	for deadline := time.After(startLimit); ; {
		c, err := net.DialTimeout("tcp", s.address, time.Second)
		if err == nil {
			return c.Close()
		}
		select {
		case <-s.child.Ended():
			return fmt.Errorf("the process ended before it listened: %w", s.child.ExitError())
		case <-deadline:
			return fmt.Errorf("it does not listen after %v: %w; its log:\n%s", startLimit, err, s.child.LastOutput())
		case <-time.After(5 * time.Millisecond): // a port that opens raises no event
		}
	}
}

// killAndRestart calls restart again and again until the context ends, each time after
// the time that wait returns. It returns how often it did.
func killAndRestart(ctx context.Context, wait func(kills int) time.Duration, restart func() error) (kills int, err error) {
	for pause(ctx, wait(kills)) {
		kills++
		if err := restart(); err != nil {
			return kills, fmt.Errorf("after %d kills: %w", kills, err)
		}
	}
	return kills, nil
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// connections returns a client with connections like those of requests.Session: kept
// open, many, and without a time limit.
func connections(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
