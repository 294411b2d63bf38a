// Package daemontest starts a real kv3fs for the tests of its clients, and kills or
// stops it.
package daemontest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	startLimit = 20 * time.Second
	stopLimit  = 20 * time.Second
)

// Main runs a package's tests and removes what Binary has built; for TestMain.
func Main(m *testing.M) int {
	defer os.RemoveAll(binDir())
	return m.Run()
}

// binDir is where this process builds.
func binDir() string { return filepath.Join(os.TempDir(), fmt.Sprintf("kv3fs-bin-%d", os.Getpid())) }

// Binary builds the daemon, once for a package's tests; KV3FS_BIN names one that exists.
var Binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("KV3FS_BIN"); path != "" {
		return path, nil
	}
	path := filepath.Join(binDir(), "kv3fs")
	out, err := exec.Command("go", "build", "-o", path, "github.com/kv3fs/kv3fs/cmd/kv3fs").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

// NeedMounts skips a test where nothing can be mounted, or fails it where all are to run.
func NeedMounts(t testing.TB) {
	t.Helper()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		fuse.Close()
		return
	}
	if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
		t.Fatalf("NOT TESTED, and KV3FS_REQUIRE_MOUNTS=1 wants it tested: %v", err)
	}
	t.Skipf("NOT TESTED: %v", err)
}

// Daemon is a kv3fs that serves Data at Mount.
type Daemon struct {
	Data, Mount string

	options []string
	cmd     *exec.Cmd
	ended   chan struct{}
}

// Serve starts one until the test ends, when it must go in order.
func Serve(t testing.TB, options ...string) *Daemon {
	t.Helper()
	NeedMounts(t)
	d := &Daemon{Data: t.TempDir(), Mount: t.TempDir(), options: options}
	if _, err := Binary(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.cmd == nil {
			return
		}
		d.cmd.Process.Signal(syscall.SIGCONT)
		d.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-d.ended:
		case <-time.After(stopLimit):
			d.Kill()
			t.Error("the daemon did not end")
		}
		syscall.Unmount(d.Mount, syscall.MNT_DETACH)
	})
	d.Start(t)
	return d
}

// Start starts it in the place of one that was killed, and returns when it serves.
func (d *Daemon) Start(t testing.TB) {
	t.Helper()
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append([]string{"serve", "--data", d.Data, "--mount", d.Mount, "--drain", "1s"}, d.options...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready, ended := make(chan struct{}), make(chan struct{})
	d.cmd, d.ended = cmd, ended
	var log strings.Builder // to be read when it has ended
	go func() {
		defer close(ended)
		serving := sync.OnceFunc(func() { close(ready) })
		for s := bufio.NewScanner(stderr); s.Scan(); {
			if strings.Contains(s.Text(), "serving") {
				serving()
			}
			log.WriteString(s.Text() + "\n")
		}
		cmd.Wait()
	}()
	select {
	case <-ready:
	case <-ended:
		t.Fatalf("the daemon ended: %s", log.String())
	case <-time.After(startLimit):
		t.Fatal("the daemon does not serve")
	}
}

// Kill ends it as a crash would.
func (d *Daemon) Kill() {
	d.cmd.Process.Kill()
	<-d.ended
}

// Freeze stops it for the time of the test; it returns when no thread of it runs any
// more.
func (d *Daemon) Freeze(t testing.TB) {
	t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Before anything else: what closes a file of it would wait for it.
	cmd := d.cmd
	t.Cleanup(func() { cmd.Process.Signal(syscall.SIGCONT) })
	if err := unix.Waitid(unix.P_PID, d.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
}

// Thaw lets it go on.
func (d *Daemon) Thaw(t testing.TB) {
	t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// Supplant starts another one at the same mount, over data of its own. The first stays
// as it is, frozen perhaps, and is killed when the test ends.
func (d *Daemon) Supplant(t testing.TB) {
	t.Helper()
	first, ended := d.cmd.Process, d.ended
	t.Cleanup(func() {
		first.Kill()
		<-ended
	})
	d.Data = t.TempDir()
	d.Start(t)
}

// Empty removes all that is on the mount, as for a new test.
func (d *Daemon) Empty(t testing.TB) {
	t.Helper()
	entries, err := os.ReadDir(d.Mount)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "3fs-virt" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(d.Mount, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}
