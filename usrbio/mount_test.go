package usrbio_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/usrbio"
)

var bg = context.Background()

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

// serve starts a daemon for the time of the test. An empty point is a new directory.
func serve(t testing.TB, point string) *daemontest.Daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a mount; -short")
	}
	return daemontest.ServeWith(t, daemontest.Options{Flags: []string{"--drain", "1s"}, Mount: point})
}

func within20s(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// must returns x; on an error the test ends.
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
	d := serve(t, filepath.Join(t.TempDir(), "my mount"))
	dir := filepath.Join(d.Mount, "a", "b")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if mp := must(usrbio.FindMount(bg, dir))(t); mp != d.Mount {
		t.Errorf("mount of %s is %s", dir, mp)
	}
	m := must(usrbio.Open(bg, dir))(t)
	if m.Path() != d.Mount {
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
	// At and beyond the end of the file.
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
	names := must(os.ReadDir(filepath.Join(d.Mount, "3fs-virt", "iovs")))(t)
	if len(names) != 3 {
		t.Errorf("left registered: %v", names)
	}
}

func TestRegisterOnAMount(t *testing.T) {
	d := serve(t, "")
	m := must(usrbio.Open(bg, d.Mount))(t)
	defer m.Close(bg)
	dir := must(os.Open(d.Mount))(t)
	defer dir.Close()
	if _, err := m.Register(bg, dir); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a directory: %v", err)
	}
	virt := must(os.Open(filepath.Join(d.Mount, "3fs-virt")))(t)
	defer virt.Close()
	if is, err := usrbio.IsHF3FS(bg, virt); !is || err != nil {
		t.Error("3fs-virt is not on a 3FS")
	}
	if _, err := m.Register(bg, virt); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a virtual directory: %v", err)
	}
	if _, err := usrbio.Open(bg, filepath.Join(d.Mount, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing path: %v", err)
	}
	other := serve(t, "")
	file := must(os.Create(filepath.Join(other.Mount, "f")))(t)
	defer file.Close()
	if _, err := m.Register(bg, file); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("a file of another mount: %v", err)
	}
}

// Another process's iov, by its id.
func TestIovOfAnotherMountHandle(t *testing.T) {
	d := serve(t, "")
	a, b := must(usrbio.Open(bg, d.Mount))(t), must(usrbio.Open(bg, d.Mount))(t)
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

// Case 78: the daemon ends while a client waits, and another daemon is started.
func TestDaemonEnds(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) { daemonEnds(t, signal) })
	}
}

func daemonEnds(t *testing.T, signal syscall.Signal) {
	d := serve(t, "")
	point := d.Mount
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
	if signal == syscall.SIGKILL {
		d.Kill()
	} else {
		d.Signal(signal)
		<-d.Ended()
	}
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
	d.Start(t)
	m = must(usrbio.Open(bg, point))(t)
	defer m.Close(bg)
	must(m.NewRing(bg, usrbio.RingOptions{}))(t)
}

// A program outlives the daemon: it notices, and its iovs move to the next one.
func TestMoveToTheNextDaemon(t *testing.T) {
	d := serve(t, "")
	old := must(usrbio.Open(bg, d.Mount))(t)
	v := must(old.NewIov(bg, 1<<20, usrbio.IovOptions{BlockBytes: 4096}))(t)
	unnamed := must(old.NewIov(bg, 4096, usrbio.IovOptions{}))(t)
	if err := unnamed.Unlink(); err != nil {
		t.Fatal(err)
	}
	copy(v.Bytes(), "content")
	if err := old.Probe(bg); err != nil {
		t.Errorf("probe: %v", err)
	}
	if _, err := old.AdoptIov(bg, v); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("adopt from the same mount: %v", err)
	}
	d.Kill()
	if err := old.Probe(bg); !errors.Is(err, usrbio.ErrDaemonGone) {
		t.Errorf("probe of a dead daemon: %v", err)
	}
	d.Start(t)
	if err := old.Probe(bg); !errors.Is(err, usrbio.ErrDaemonGone) {
		t.Errorf("probe of the daemon before: %v", err)
	}
	m := must(usrbio.Open(bg, d.Mount))(t)
	defer m.Close(bg)
	if _, err := m.AdoptIov(bg, unnamed); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("adopt memory without a name: %v", err)
	}
	moved := must(m.AdoptIov(bg, v))(t)
	if err := v.Close(bg); err != nil {
		t.Errorf("close of the iov before: %v", err)
	}
	if err := old.Close(bg); err != nil {
		t.Errorf("close of the mount before: %v", err)
	}
	if got := string(moved.Bytes()[:7]); got != "content" || moved.ID() != v.ID() {
		t.Errorf("%q, %v, was %v", got, moved.ID(), v.ID())
	}
	file := must(os.Create(filepath.Join(d.Mount, "f")))(t)
	defer file.Close()
	f := must(m.Register(bg, file))(t)
	r := must(m.NewRing(bg, usrbio.RingOptions{Write: true}))(t)
	if _, err := r.Prepare(usrbio.Request{File: f, Iov: moved, Bytes: 7}); err != nil {
		t.Fatal(err)
	}
	r.Submit()
	var dst [1]usrbio.Completion
	if _, err := r.Wait(bg, dst[:], 1); err != nil || dst[0].Result != 7 {
		t.Errorf("write: %+v, %v", dst[0], err)
	}
}

// Calls wait only once for a daemon that is frozen. When it continues, everything is
// removed.
func TestDaemonHangs(t *testing.T) {
	d := serve(t, "")
	m := must(usrbio.Open(bg, d.Mount))(t)
	m.SetAnswerTimeout(500 * time.Millisecond)
	for range 20 {
		must(m.NewRing(bg, usrbio.RingOptions{Entries: 4}))(t)
		must(m.NewIov(bg, 4096, usrbio.IovOptions{}))(t)
		file := must(os.CreateTemp(d.Mount, "f"))(t)
		must(m.Register(bg, file))(t)
		file.Close()
	}
	other := must(usrbio.Open(bg, d.Mount))(t) // with files and no rings
	other.SetAnswerTimeout(500 * time.Millisecond)
	file := must(os.Create(filepath.Join(d.Mount, "g")))(t)
	must(other.Register(bg, file))(t)
	file.Close()

	d.Freeze(t)
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
	// Whether the close of a file asks the daemon depends on the data directory's file system.
	if err := other.Close(bg); err != nil && !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("close with a file: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	d.Thaw(t)
	var names []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		names = nil
		for _, e := range must(os.ReadDir(filepath.Join(d.Mount, "3fs-virt", "iovs")))(t) {
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

// A mount whose daemon counted as hung works again once the daemon answers.
func TestDaemonAnswersAgain(t *testing.T) {
	d := serve(t, "")
	m := must(usrbio.Open(bg, d.Mount))(t)
	defer m.Close(bg)
	m.SetAnswerTimeout(500 * time.Millisecond)
	file := must(os.Create(filepath.Join(d.Mount, "f")))(t)
	defer file.Close()
	d.Freeze(t)
	if _, err := m.NewIov(bg, 4096, usrbio.IovOptions{}); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("new iov: %v", err)
	}
	for range 3 {
		if _, err := m.Register(bg, file); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("register: %v", err)
		}
	}
	d.Thaw(t)
	m.SetAnswerTimeout(20 * time.Second)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err := m.NewIov(bg, 4096, usrbio.IovOptions{})
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("new iov, of a daemon that answers: %v", err)
		}
	}
	must(m.NewRing(bg, usrbio.RingOptions{}))(t)
	must(m.Register(bg, file))(t)
}

// Reads of 4 KiB from the page cache, with one thread that prepares and reaps.
func BenchmarkMountRead4K(b *testing.B) {
	const size, depth = 64 << 20, 512
	d := serve(b, "")
	m := must(usrbio.Open(bg, d.Mount))(b)
	defer m.Close(bg)
	file := must(os.Create(filepath.Join(d.Mount, "f")))(b)
	defer file.Close()
	content := bytes.Repeat([]byte{0xa5}, size)
	if _, err := file.Write(content); err != nil {
		b.Fatal(err)
	}
	f := must(m.Register(bg, file))(b)
	v := must(m.NewIov(bg, depth*4096, usrbio.IovOptions{Reserve: true}))(b)
	clear(v.Bytes()) // what no read fills is seen in the end
	r := must(m.NewRing(bg, usrbio.RingOptions{Entries: depth}))(b)
	rng := rand.New(rand.NewPCG(1, 1))
	dst := make([]usrbio.Completion, depth)
	ctx := context.Background()
	// Each slot has a buffer, which is free when the slot is.
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
	b.StopTimer()
	for k := range min(b.N, depth) { // buffers are taken from the end
		at := (depth - 1 - k) * 4096
		if !bytes.Equal(v.Bytes()[at:at+4096], content[:4096]) {
			b.Fatalf("buffer %d was not filled", depth-1-k)
		}
	}
}

// The cost of making a ring for each transfer.
func BenchmarkMountNewRing(b *testing.B) {
	d := serve(b, "")
	m := must(usrbio.Open(bg, d.Mount))(b)
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
