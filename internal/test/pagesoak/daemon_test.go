package pagesoak

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/usrbio"
)

const (
	startLimit = 30 * time.Second
	stopLimit  = 30 * time.Second
)

// notTested ends a test that cannot be run here, loudly.
func notTested(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
		t.Fatalf("NOT TESTED, and KV3FS_REQUIRE_MOUNTS=1 wants it tested: %s", why)
	}
	t.Skipf("NOT TESTED: %s", why)
}

func needMounts(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts daemons and takes its time")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		notTested(t, err.Error())
	} else {
		f.Close()
	}
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			notTested(t, "neither root nor fusermount3")
		}
	}
}

// build makes the binary that is tested.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "kv3fs")
	cmd := exec.Command("go", "build", "-o", binary, "../../../cmd/kv3fs")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// process is a daemon that may be killed and started again.
type process struct {
	command []string
	answers func() error // nil when it does
	child   *measure.Child
	kills   int
}

// launch starts it until the test ends, when it must go in order.
func launch(t *testing.T, name string, answers func() error, command ...string) *process {
	t.Helper()
	p := &process{command: command, answers: answers}
	if err := p.start(t.Context()); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := p.child.Stop(stopLimit); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if t.Failed() {
			t.Logf("%s was killed %d times and said last:\n%s", name, p.kills, p.child.LastWords())
		}
	})
	return p
}

func (p *process) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var err error
	if p.child, err = measure.StartChild(p.command[0], p.command[1:]...); err != nil {
		return err
	}
	for {
		if err = p.answers(); err == nil {
			return nil
		}
		select {
		case <-p.child.Ended():
			return fmt.Errorf("ended at once: %w", p.child.Fate())
		case <-ctx.Done():
			return fmt.Errorf("does not answer (%w); it said:\n%s", err, p.child.LastWords())
		case <-time.After(5 * time.Millisecond): // nobody tells when a port or a mount works
		}
	}
}

// killAgainAndAgain kills it and starts it, until the context ends.
func (p *process) killAgainAndAgain(ctx context.Context, every func() time.Duration) error {
	for pause(ctx, every()) {
		p.child.Kill()
		p.kills++
		if err := p.start(context.WithoutCancel(ctx)); err != nil {
			return fmt.Errorf("after %d kills: %w", p.kills, err)
		}
	}
	return nil
}

// mounted tells whether a mount works.
func mounted(point string) func() error {
	return func() error {
		m, err := usrbio.Open(context.Background(), point)
		if err != nil {
			return err
		}
		return m.Close(context.Background())
	}
}

// listens tells whether somebody listens at an address.
func listens(address string) func() error {
	return func() error {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}
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

// place is directories for a daemon. Whatever it leaves mounted goes in the end.
func place(t *testing.T) (data, mountPoint string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	data, mountPoint = filepath.Join(dir, "data"), filepath.Join(dir, "mnt")
	t.Cleanup(func() {
		if unix.Unmount(mountPoint, unix.MNT_DETACH) == nil {
			t.Errorf("%s was left mounted", mountPoint)
		}
	})
	return data, mountPoint
}

// connections are as those of requests.Session: kept, many, and without a limit.
func connections(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
