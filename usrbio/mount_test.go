package usrbio_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/usrbio"
)

var (
	binDir string
	bg     = context.Background()
)

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

// daemon is a kv3fs of our own, mounted at point.
type daemon struct {
	point string
	cmd   *exec.Cmd
	ended chan struct{}
}

func serve(t testing.TB, data, point string) *daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a mount; -short")
	}
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs a mount:", err)
	}
	fuse.Close()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{point: point, cmd: exec.Command(path, "serve", "--data", data, "--mount", point, "--drain", "1s"), ended: make(chan struct{})}
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	var log bytes.Buffer // to be read when it has ended
	go func() {
		defer close(d.ended)
		serving := sync.OnceFunc(func() { close(ready) })
		for s := bufio.NewScanner(stderr); s.Scan(); {
			if strings.Contains(s.Text(), "serving") {
				serving()
			}
			log.WriteString(s.Text() + "\n")
		}
		d.cmd.Wait()
	}()
	t.Cleanup(func() {
		d.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-d.ended:
		case <-time.After(20 * time.Second):
			d.cmd.Process.Kill()
			<-d.ended
			t.Error("the daemon did not end")
		}
		syscall.Unmount(point, syscall.MNT_DETACH)
		if t.Failed() {
			t.Log(log.String())
		}
	})
	select {
	case <-ready:
	case <-d.ended:
		t.Fatalf("the daemon ended: %s", log.String())
	case <-time.After(20 * time.Second):
		t.Fatal("the daemon does not serve")
	}
	return d
}

func within20s(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// must unwraps what a test cannot go on without.
func must[T any](x T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

func TestOnAMount(t *testing.T) {
	d := serve(t, t.TempDir(), filepath.Join(t.TempDir(), "my mount"))
	dir := filepath.Join(d.point, "a", "b")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if mp := must(usrbio.FindMount(bg, dir))(t); mp != d.point {
		t.Errorf("mount of %s is %s", dir, mp)
	}
	m := must(usrbio.Open(bg, dir))(t)
	if m.Path() != d.point {
		t.Errorf("path %s", m.Path())
	}
	const size = 3<<20 + 17
	content := make([]byte, size)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range content {
		content[i] = byte(rng.Uint32())
	}
	v := must(m.NewIov(bg, 8<<20, usrbio.IovOptions{}))(t)
	if err := v.Unlink(); err != nil {
		t.Fatal(err)
	}
	osFile := must(os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR|os.O_CREATE, 0o644))(t)
	if is, err := usrbio.IsHF3FS(bg, osFile); !is || err != nil {
		t.Error("a file of the mount is not on a 3FS")
	}
	f := must(m.Register(bg, osFile))(t)
	if err := osFile.Close(); err != nil { // f holds its own
		t.Fatal(err)
	}
	for _, priority := range []usrbio.Priority{usrbio.PriorityHigh, usrbio.PriorityNormal, usrbio.PriorityLow} {
		w := must(m.NewRing(bg, usrbio.RingOptions{Write: true, Priority: priority, Entries: 4}))(t)
		r := must(m.NewRing(bg, usrbio.RingOptions{Priority: priority, Entries: 4}))(t)
		clear(v.Bytes())
		copy(v.Bytes(), content)
		var in, out []usrbio.Request
		const step = 300_001
		for off := int64(0); off < size; off += step {
			n := min(step, size-off)
			out = append(out, usrbio.Request{File: f, FileOffset: off, Iov: v, IovOffset: off, Bytes: n})
			in = append(in, usrbio.Request{File: f, FileOffset: off, Iov: v, IovOffset: 4<<20 + off, Bytes: n})
		}
		for _, step := range []struct {
			ring     *usrbio.Ring
			requests []usrbio.Request
		}{{w, out}, {r, in}} {
			if err := step.ring.Do(within20s(t), step.requests); err != nil {
				t.Fatal(err)
			}
			for i, q := range step.requests {
				if q.Result != q.Bytes {
					t.Errorf("request %d: %d of %d, %v", i, q.Result, q.Bytes, q.Err())
				}
			}
		}
		if !bytes.Equal(v.Bytes()[4<<20:][:size], content) {
			t.Error("the bytes read are not those written")
		}
		// Closing the mount closes these; some programs do it themselves.
		if err := errors.Join(w.Close(bg), r.Close(bg)); err != nil {
			t.Error(err)
		}
	}
	if got := must(os.ReadFile(filepath.Join(dir, "f")))(t); !bytes.Equal(got, content) {
		t.Error("the file is not what was written")
	}
	// At and behind the end of the file.
	r := must(m.NewRing(bg, usrbio.RingOptions{}))(t)
	past := []usrbio.Request{
		{File: f, FileOffset: size - 10, Iov: v, Bytes: 4096},
		{File: f, FileOffset: size, Iov: v, IovOffset: 4096, Bytes: 4096},
		{File: f, FileOffset: size + 1<<30, Iov: v, IovOffset: 8192, Bytes: 4096},
	}
	if err := r.Do(within20s(t), past); err != nil {
		t.Fatal(err)
	}
	if past[0].Result != 10 || past[1].Result != 0 || past[2].Result != 0 {
		t.Errorf("at the end: %d, %d, %d", past[0].Result, past[1].Result, past[2].Result)
	}
	if err := m.Close(bg); err != nil {
		t.Error(err)
	}
	names := must(os.ReadDir(filepath.Join(d.point, "3fs-virt", "iovs")))(t)
	if len(names) != 3 {
		t.Errorf("left registered: %v", names)
	}
}

func TestRegisterOnAMount(t *testing.T) {
	d := serve(t, t.TempDir(), t.TempDir())
	m := must(usrbio.Open(bg, d.point))(t)
	defer m.Close(bg)
	dir := must(os.Open(d.point))(t)
	defer dir.Close()
	if _, err := m.Register(bg, dir); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a directory: %v", err)
	}
	virt := must(os.Open(filepath.Join(d.point, "3fs-virt")))(t)
	defer virt.Close()
	if is, err := usrbio.IsHF3FS(bg, virt); !is || err != nil {
		t.Error("3fs-virt is not on a 3FS")
	}
	if _, err := m.Register(bg, virt); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a virtual directory: %v", err)
	}
	if _, err := usrbio.Open(bg, filepath.Join(d.point, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing path: %v", err)
	}
	other := serve(t, t.TempDir(), t.TempDir())
	file := must(os.Create(filepath.Join(other.point, "f")))(t)
	defer file.Close()
	if _, err := m.Register(bg, file); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("a file of another mount: %v", err)
	}
}

// Another process's iov, by its id.
func TestIovOfAnotherMountHandle(t *testing.T) {
	d := serve(t, t.TempDir(), t.TempDir())
	a, b := must(usrbio.Open(bg, d.point))(t), must(usrbio.Open(bg, d.point))(t)
	defer a.Close(bg)
	defer b.Close(bg)
	v := must(a.NewIov(bg, 1<<20, usrbio.IovOptions{BlockBytes: 1 << 19}))(t)
	copy(v.Bytes(), "shared")
	w := must(b.OpenIov(bg, v.ID(), usrbio.IovOptions{BlockBytes: 1 << 19}))(t)
	if got := string(w.Bytes()[:6]); got != "shared" {
		t.Errorf("got %q", got)
	}
	if _, err := b.OpenIov(bg, v.ID(), usrbio.IovOptions{}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("with another block size: %v", err)
	}
}

// Case 78: the daemon ends under a waiting client, and another one is started.
func TestDaemonEnds(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) { daemonEnds(t, signal) })
	}
}

func daemonEnds(t *testing.T, signal syscall.Signal) {
	data, point := t.TempDir(), t.TempDir()
	d := serve(t, data, point)
	m := must(usrbio.Open(bg, point))(t)
	r := must(m.NewRing(bg, usrbio.RingOptions{IODepth: 8}))(t) // never served with less
	v := must(m.NewIov(bg, 1<<20, usrbio.IovOptions{}))(t)
	file := must(os.Create(filepath.Join(point, "f")))(t)
	f := must(m.Register(bg, file))(t)
	if _, err := r.Prepare(usrbio.Request{File: f, Iov: v, Bytes: 4096, Userdata: 1}); err != nil {
		t.Fatal(err)
	}
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		var dst [1]usrbio.Completion
		_, err := r.Wait(context.Background(), dst[:], 1)
		waited <- err
	}()
	time.Sleep(50 * time.Millisecond)
	d.cmd.Process.Signal(signal)
	<-d.ended
	start := time.Now()
	select {
	case err := <-waited:
		if !errors.Is(err, usrbio.ErrDaemonGone) {
			t.Errorf("wait: %v", err)
		}
		t.Logf("noticed %v after its end", time.Since(start).Round(time.Millisecond))
	case <-time.After(10 * time.Second):
		t.Fatal("wait hangs on a dead daemon")
	}
	if _, err := m.NewIov(bg, 4096, usrbio.IovOptions{}); !errors.Is(err, usrbio.ErrDaemonGone) {
		t.Errorf("new iov: %v", err)
	}
	file.Close()
	if err := m.Close(bg); err != nil {
		t.Errorf("close: %v", err)
	}
	if signal == syscall.SIGKILL { // the mount is left, dead
		if _, err := usrbio.Open(bg, point); !errors.Is(err, usrbio.ErrDaemonGone) {
			t.Errorf("open of a dead mount: %v", err)
		}
	}
	serve(t, data, point)
	m = must(usrbio.Open(bg, point))(t)
	defer m.Close(bg)
	must(m.NewRing(bg, usrbio.RingOptions{}))(t)
}

// A daemon that is stopped for a while is waited for once, and finds everything
// gone when it goes on.
func TestDaemonHangs(t *testing.T) {
	d := serve(t, t.TempDir(), t.TempDir())
	m := must(usrbio.Open(bg, d.point))(t)
	m.SetPatience(500 * time.Millisecond)
	for range 20 {
		must(m.NewRing(bg, usrbio.RingOptions{Entries: 4}))(t)
		must(m.NewIov(bg, 4096, usrbio.IovOptions{}))(t)
		file := must(os.CreateTemp(d.point, "f"))(t)
		must(m.Register(bg, file))(t)
		file.Close()
	}
	other := must(usrbio.Open(bg, d.point))(t) // with files and no rings
	other.SetPatience(500 * time.Millisecond)
	file := must(os.Create(filepath.Join(d.point, "g")))(t)
	must(other.Register(bg, file))(t)
	file.Close()

	d.cmd.Process.Signal(syscall.SIGSTOP)
	running := sync.OnceFunc(func() { d.cmd.Process.Signal(syscall.SIGCONT) })
	defer running()
	began := time.Now()
	if _, err := m.NewRing(bg, usrbio.RingOptions{Priority: usrbio.PriorityHigh}); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("new ring: %v", err)
	}
	if _, err := m.NewIov(bg, 4096, usrbio.IovOptions{}); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("new iov: %v", err)
	}
	if err := m.Close(bg); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("close: %v", err)
	}
	if err := other.Close(bg); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("close with a file: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	running()
	var names []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		names = nil
		for _, e := range must(os.ReadDir(filepath.Join(d.point, "3fs-virt", "iovs")))(t) {
			if !strings.HasPrefix(e.Name(), "submit-ios") {
				names = append(names, e.Name())
			}
		}
		if len(names) == 0 {
			return
		}
	}
	t.Errorf("left behind: %q", names)
}

// Reads of 4 KiB out of the page cache, one thread that prepares and reaps.
func BenchmarkMountRead4K(b *testing.B) {
	const size, depth = 64 << 20, 512
	d := serve(b, b.TempDir(), b.TempDir())
	m := must(usrbio.Open(bg, d.point))(b)
	defer m.Close(bg)
	file := must(os.Create(filepath.Join(d.point, "f")))(b)
	defer file.Close()
	if _, err := file.Write(make([]byte, size)); err != nil {
		b.Fatal(err)
	}
	f := must(m.Register(bg, file))(b)
	v := must(m.NewIov(bg, depth*4096, usrbio.IovOptions{Reserve: true}))(b)
	r := must(m.NewRing(bg, usrbio.RingOptions{Entries: depth}))(b)
	rng := rand.New(rand.NewPCG(1, 1))
	dst := make([]usrbio.Completion, depth)
	ctx := context.Background()
	// Buffers go with slots: a free slot's buffer is free.
	free := make([]int64, depth)
	for i := range free {
		free[i] = int64(i)
	}
	b.SetBytes(4096)
	b.ReportAllocs()
	left := b.N
	for inFlight := 0; left > 0 || inFlight > 0; {
		begun := inFlight
		for left > 0 && len(free) > 0 {
			k := free[len(free)-1]
			if _, err := r.Prepare(usrbio.Request{File: f, FileOffset: rng.Int64N(size/4096) * 4096, Iov: v, IovOffset: k * 4096, Bytes: 4096, Userdata: uint64(k)}); err != nil {
				break
			}
			free = free[:len(free)-1]
			inFlight++
			left--
		}
		if inFlight > begun {
			r.Submit()
		}
		n, err := r.Wait(ctx, dst, min(inFlight, depth/4))
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range dst[:n] {
			if c.Result != 4096 {
				b.Fatal(c.Result, c.Err())
			}
			free = append(free, int64(c.Userdata))
		}
		inFlight -= n
	}
}

// What a program pays that makes a ring for each transfer.
func BenchmarkMountNewRing(b *testing.B) {
	d := serve(b, b.TempDir(), b.TempDir())
	m := must(usrbio.Open(bg, d.point))(b)
	defer m.Close(bg)
	for b.Loop() {
		r, err := m.NewRing(bg, usrbio.RingOptions{Entries: 64})
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Close(bg); err != nil {
			b.Fatal(err)
		}
	}
}
