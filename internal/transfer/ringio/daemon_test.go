package ringio_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/transfer"
	"github.com/kv3fs/kv3fs/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/kvstore/memory"
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

// daemon is a kv3fs of our own.
type daemon struct {
	data, point string
	cmd         *exec.Cmd
	ended       chan struct{}
}

func serve(t testing.TB) *daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a mount; -short")
	}
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs a mount:", err)
	}
	fuse.Close()
	d := &daemon{data: t.TempDir(), point: t.TempDir()}
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

// start starts one, also in the place of one that was killed.
func (d *daemon) start(t testing.TB) {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	d.cmd, d.ended = exec.Command(path, "serve", "--data", d.data, "--mount", d.point, "--drain", "1s"), make(chan struct{})
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

// stop stops the daemon for the time of the test; it returns when no thread of it
// runs any more.
func (d *daemon) stop(t testing.TB) {
	t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Before anything else: what closes a file of it would wait for it.
	t.Cleanup(func() { d.cmd.Process.Signal(syscall.SIGCONT) })
	if err := unix.Waitid(unix.P_PID, d.cmd.Process.Pid, nil, unix.WSTOPPED, nil); err != nil {
		t.Fatal(err)
	}
}

func engine(t testing.TB, d *daemon, o ringio.Options) *ringio.Engine {
	t.Helper()
	o.Mount = d.point
	e, err := ringio.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// shared is registered memory. It is there until the engine is closed.
func shared(t testing.TB, e *ringio.Engine, sizeBytes int) *memory.Memory {
	t.Helper()
	m, err := memory.New(int64(sizeBytes))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Close()
		m.Close()
	})
	if err := e.Register(m.Name(), m.Bytes()); err != nil {
		t.Fatal(err)
	}
	return m
}

func open(t testing.TB, e *ringio.Engine, d *daemon, name string) transfer.File {
	t.Helper()
	return openAs(t, e, d, name, os.O_RDONLY)
}

func create(t testing.TB, e *ringio.Engine, d *daemon, name string) transfer.File {
	t.Helper()
	return openAs(t, e, d, name, os.O_RDWR|os.O_CREATE)
}

func openAs(t testing.TB, e *ringio.Engine, d *daemon, name string, flags int) transfer.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(d.point, name), flags, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	x, err := e.Open(f)
	if err != nil {
		f.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

type result struct {
	n     int
	err   error
	times int
}

// results does all moves and waits for them.
func results(ctx context.Context, e *ringio.Engine, ops []transfer.Op) []result {
	all := make([]result, len(ops))
	var wg sync.WaitGroup
	wg.Add(len(ops))
	for i := range ops {
		ops[i].Done = func(n int, err error) {
			all[i] = result{n, err, all[i].times + 1}
			wg.Done() // panics when it is once too often
		}
	}
	e.Do(ctx, ops)
	wg.Wait()
	return all
}

func do(t testing.TB, e *ringio.Engine, op transfer.Op) (int, error) {
	t.Helper()
	r := results(t.Context(), e, []transfer.Op{op})[0]
	return r.n, r.err
}

// all does moves that must all succeed.
func all(t testing.TB, e *ringio.Engine, ops []transfer.Op) {
	t.Helper()
	for i, r := range results(t.Context(), e, ops) {
		if r.err != nil || r.n != len(ops[i].Buf) {
			t.Errorf("move of %d bytes: %d, %v", len(ops[i].Buf), r.n, r.err)
		}
	}
}
