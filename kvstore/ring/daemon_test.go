package ring_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var binDir string

func TestMain(m *testing.M) {
	var err error
	if binDir, err = os.MkdirTemp("", "kv3fs-bin"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(binDir)
	os.Exit(code)
}

// binary builds the daemon once; KV3FS_BIN names one that exists.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("KV3FS_BIN"); path != "" {
		return path, nil
	}
	path := filepath.Join(binDir, "kv3fs")
	out, err := exec.Command("go", "build", "-o", path, "github.com/kv3fs/kv3fs/cmd/kv3fs").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

// notHere skips a test that this machine cannot run, or fails it where all are to run.
func notHere(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
		t.Fatalf("NOT TESTED, and KV3FS_REQUIRE_MOUNTS=1 wants it tested: %s", why)
	}
	t.Skipf("NOT TESTED: %s", why)
}

// daemon is a kv3fs of our own.
type daemon struct {
	data, point string
	options     []string
	cmd         *exec.Cmd
	ended       chan struct{}
}

func serve(t testing.TB, options ...string) *daemon {
	t.Helper()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		notHere(t, err.Error())
	}
	fuse.Close()
	d := &daemon{data: t.TempDir(), point: t.TempDir(), options: options}
	if _, err := binary(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.cmd.Process.Signal(syscall.SIGCONT)
		d.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-d.ended:
		case <-time.After(20 * time.Second):
			d.kill()
			t.Error("the daemon did not end")
		}
		syscall.Unmount(d.point, syscall.MNT_DETACH)
	})
	d.start(t)
	return d
}

func (d *daemon) start(t testing.TB) {
	t.Helper()
	path, _ := binary()
	args := append([]string{"serve", "--data", d.data, "--mount", d.point, "--drain", "1s"}, d.options...)
	d.cmd, d.ended = exec.Command(path, args...), make(chan struct{})
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	var log strings.Builder // to be read when it has ended
	go func(cmd *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		serving := sync.OnceFunc(func() { close(ready) })
		for s := bufio.NewScanner(stderr); s.Scan(); {
			if strings.Contains(s.Text(), "serving") {
				serving()
			}
			log.WriteString(s.Text() + "\n")
		}
		cmd.Wait()
	}(d.cmd, d.ended)
	select {
	case <-ready:
	case <-d.ended:
		t.Fatalf("the daemon ended: %s", log.String())
	case <-time.After(20 * time.Second):
		t.Fatal("the daemon does not serve")
	}
}

// kill ends the daemon as a crash would.
func (d *daemon) kill() {
	d.cmd.Process.Kill()
	<-d.ended
}

// empty removes all that is on the mount, as for a new test.
func (d *daemon) empty(t testing.TB) {
	t.Helper()
	entries, err := os.ReadDir(d.point)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "3fs-virt" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(d.point, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}
