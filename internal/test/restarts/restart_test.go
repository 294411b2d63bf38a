package restarts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// serve starts a daemon with the state of restarts in a directory of the test's own.
func serve(t *testing.T, env ...string) (d *daemontest.Daemon, state string) {
	t.Helper()
	return serveAs(t, daemontest.Options{Env: env})
}

// serveAs is serve with options.
func serveAs(t *testing.T, o daemontest.Options) (d *daemontest.Daemon, state string) {
	t.Helper()
	daemontest.NeedRoot(t)
	top, err := os.MkdirTemp("/dev/shm", "kv3fs-restarts-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	state = filepath.Join(top, "state")
	o.Flags = append(o.Flags, "--drain", "0s", "--pages-listen", "off", "--restart-state", state)
	// The successor removes what the last one leaves: the one that serves when the test ends must end for good.
	d = daemontest.ServeWith(t, o)
	t.Cleanup(func() { endForGood(t, d) })
	return d, state
}

// endForGood ends a daemon that expects no successor.
func endForGood(t *testing.T, d *daemontest.Daemon) {
	interrupt := func() {
		_ = d.Signal(os.Interrupt)
		select {
		case <-d.Ended():
		case <-time.After(patience):
			t.Errorf("the daemon does not end\n%s", d.Log())
		}
	}
	held := d.Held()
	if d.Alive() {
		interrupt()
	}
	if held { // told to hand over, the last one has left everything to a next one
		d.Unhold()
		d.SetEnv()
		d.Start(t)
		interrupt()
	}
}

// run has a client work while disturb runs.
func run(t *testing.T, l *load, disturb func()) error {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(often(2, 60))*time.Minute)
	defer cancel()
	go func() { ended <- l.runUntil(ctx, stop) }()
	disturb()
	close(stop)
	return <-ended
}

// A client with 64 reads and 64 writes outstanding goes on over kill -9 and over SIGTERM: each request has exactly one
// completion, no byte is wrong, and no buffer is touched after its completion.
func TestRingsOutliveTheDaemon(t *testing.T) {
	deaths := often(6, 300)
	rng := rand.New(rand.NewPCG(seed.New(t), 1))
	d, _ := serve(t)
	l := newLoad(t, d.Mount, d.Data, rand.New(rand.NewPCG(rng.Uint64(), 0)))
	err := run(t, l, func() {
		for i := range deaths {
			time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			if i%3 == 2 {
				_ = d.Signal(sigterm)
				<-d.Ended()
			} else {
				d.Kill()
			}
			d.Start(t)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	l.verify()
	t.Logf("%d requests over %d deaths", l.done, deaths)
	if !strings.Contains(d.Log(), "took over what the last daemon has left") {
		t.Errorf("the daemon says nothing of what it has taken over:\n%s", d.Log())
	}
}

// Without what the daemon notes of requests in flight, some are lost: so the tests above can fail.
func TestControl(t *testing.T) {
	needInvariants(t)
	rng := rand.New(rand.NewPCG(seed.New(t), 4))
	d, state := serve(t, fmt.Sprintf("%s=A3:%d", dieVariable, 20+rng.IntN(100)))
	l := newLoad(t, d.Mount, d.Data, rng)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	soon, giveUp := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- l.runUntil(soon, make(chan struct{})) }()
	<-d.Ended()
	forget(t, state)
	d.SetEnv()
	d.Start(t)
	time.AfterFunc(2*time.Second, giveUp)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("the client went on until it was stopped, or failed otherwise: %v", err)
	}
	left := 0
	for i := range l.flying {
		left += len(l.flying[i])
	}
	if left == 0 {
		t.Error("no request was lost, although none was known to be in flight")
	}
}
