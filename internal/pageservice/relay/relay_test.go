package relay

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }

// start relays to an address until the test ends, or until it is told to.
func start(t *testing.T, to Target) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := Run(ctx, l, to, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// echo answers each line in capitals, and the end of a client by a farewell.
func echo(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan(); {
					fmt.Fprintln(c, strings.ToUpper(s.Text()))
				}
				fmt.Fprintln(c, "BYE")
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return l
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// Both ways are passed on, on many connections, each end by itself, to a socket and to another port.
func TestBothWays(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	echo(t, "unix", socket)
	for _, to := range []Target{{"unix", socket}, {"tcp", echo(t, "tcp", "127.0.0.1:0").Addr().String()}} {
		address, _ := start(t, to)
		var clients sync.WaitGroup
		for i := range 20 {
			c := dial(t, address)
			clients.Go(func() {
				fmt.Fprintf(c, "client %d\n", i)
				r := bufio.NewReader(c)
				if line, err := r.ReadString('\n'); err != nil || line != fmt.Sprintf("CLIENT %d\n", i) {
					t.Errorf("%q, %v", line, err)
				}
				if err := c.CloseWrite(); err != nil {
					t.Error(err)
				}
				if rest, err := io.ReadAll(r); err != nil || string(rest) != "BYE\n" {
					t.Errorf("%q, %v", rest, err)
				}
			})
		}
		clients.Wait()
	}
}

// Where nobody listens, the client's connection ends; once somebody does, the next one is passed on.
func TestServiceComesLater(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	address, _ := start(t, Target{"unix", socket})
	if n, err := dial(t, address).Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d, %v", n, err)
	}
	echo(t, "unix", socket)
	c := dial(t, address)
	fmt.Fprintln(c, "x")
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "X\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// A stop ends connections on which nobody says anything, and returns.
func TestStop(t *testing.T) {
	address, stop := start(t, Target{"tcp", echo(t, "tcp", "127.0.0.1:0").Addr().String()})
	c := dial(t, address)
	fmt.Fprintln(c, "x")
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	stop()
	if line, err := r.ReadString('\n'); err == nil {
		t.Errorf("%q after the stop", line)
	}
}
