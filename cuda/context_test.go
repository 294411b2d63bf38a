package cuda

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/device"
)

// A thread has the context that it had before each call, whether the call succeeds, fails, or
// finds a dead device: none, that of another device, and this one's own, which the engine has
// made current.
func TestCallersContextIsUntouched(t *testing.T) {
	d, other := open(t), openLeaky(t, 1)
	b, l, df := alloc(t, d, 8192), newLane(t, d, 4096), openDirect(t, d)
	mem, file := random(4096), create(t)
	calls := map[string]func() error{
		"Alloc":     func() error { _, err := d.Alloc(1 << 50); return err },
		"AllocHost": func() error { _, err := d.AllocHost(1 << 50); return err },
		"Free": func() error {
			b, err := d.Alloc(4096)
			if err != nil {
				return err
			}
			return d.Free(b)
		},
		"FreeHost": func() error {
			mem, err := d.AllocHost(4096)
			if err != nil {
				return err
			}
			return d.FreeHost(mem)
		},
		"OpenDirect": func() error {
			df, err := d.OpenDirect(file)
			if err != nil {
				return err
			}
			return df.Close()
		},
		"EventOf":    func() error { return d.EventOf(l.event.(*event).handle).Wait() },
		"Register":   func() error { return errors.Join(d.Register(mem), d.Unregister(mem)) },
		"Unregister": func() error { return d.Unregister(mem) },
		"ToDevice":   func() error { return l.ToDevice(b.At(0), l.mem) },
		"ToHost":     func() error { return l.ToHost(l.mem, b.At(0)) },
		"After":      func() error { return l.After(l.event) },
		"Record":     func() error { return l.event.Record(l.Stream) },
		"Wait":       func() error { return l.event.Wait() },
		"NewStream": func() error {
			s, err := d.NewStream()
			if err != nil {
				return err
			}
			return s.Close()
		},
		"NewEvent": func() error {
			e, err := d.NewEvent()
			if err != nil {
				return err
			}
			return e.Close()
		},
		"RegisterBuffer":   func() error { return errors.Join(d.RegisterBuffer(b), d.UnregisterBuffer(b)) },
		"UnregisterBuffer": func() error { return d.UnregisterBuffer(b) },
		"WriteAt":          func() error { _, err := df.WriteAt(b.At(0), 4096, 0); return err },
		"ReadAt":           func() error { _, err := df.ReadAt(b.At(0), 4096, 0); return err },
		"ReadAt, beyond":   func() error { _, err := df.ReadAt(b.At(8000), 4096, 0); return err },
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var current func(*uintptr) int32
	var makeCurrent func(uintptr) int32
	host(t, built(t).CUDA, "cuCtxGetCurrent", &current)
	host(t, built(t).CUDA, "cuCtxSetCurrent", &makeCurrent)
	for of, context := range map[string]uintptr{"none": 0, "another": other.context, "its own": d.context} {
		if makeCurrent(context) != 0 {
			t.Fatal("no context can be made current")
		}
		depth := get(t, "depth")
		for state, value := range map[string]int{"": 0, "fail_next": 1, "dead": 1} {
			for name, call := range calls {
				if state != "" {
					set(t, state, value)
				}
				err := call()
				if state != "" {
					set(t, state, 0)
				}
				if state == "dead" && err == nil && name != "ReadAt, beyond" {
					t.Errorf("%s of a dead device succeeds", name)
				}
				var now uintptr
				if current(&now); now != context || get(t, "depth") != depth {
					t.Fatalf("current was %s (%#x, %d deep): after %s, %q, it is %#x, %d deep", of, context, depth, name, state, now, get(t, "depth"))
				}
			}
			l.wait(t) // of what was queued
		}
		makeCurrent(0)
	}
	if err := d.UnregisterBuffer(b); err == nil {
		t.Error("the buffer is registered still")
	}
}

func openDirect(t *testing.T, d *Device) device.DirectFile {
	t.Helper()
	df, err := d.OpenDirect(create(t))
	must(t, err)
	t.Cleanup(func() { must(t, df.Close()) })
	return df
}

// Two devices work side by side: each has its own memory, streams wait for events of the other,
// and closing one leaves the other and cuFile's driver as they are.
func TestSeveralDevices(t *testing.T) {
	d := open(t)
	l := built(t)
	other, err := Open(Options{Ordinal: 1, Library: l.CUDA, FileLibrary: l.CuFile})
	must(t, err)
	if d.Name() == other.Name() {
		t.Errorf("both are called %s", d.Name())
	}
	set(t, "delay_us", 2000)
	b := alloc(t, d, 4096)
	far, err := other.Alloc(4096)
	must(t, err)
	one := newLane(t, d, 4096)
	s, err := other.NewStream()
	must(t, err)
	e, err := other.NewEvent()
	must(t, err)
	if err := s.ToDevice(b.At(0), one.mem); err == nil {
		t.Error("memory of the other device was written")
	}
	for n := range 10 {
		copy(one.mem, bytes.Repeat([]byte{byte(n)}, 4096))
		must(t, one.ToDevice(b.At(0), one.mem))
		must(t, one.ToHost(one.mem, b.At(0)))
		must(t, one.event.Record(one.Stream))
		must(t, errors.Join(s.After(one.event), s.ToDevice(far.At(0), one.mem), e.Record(s), e.Wait()))
	}
	df, err := other.OpenDirect(create(t))
	must(t, err)
	if n, err := df.WriteAt(far.At(0), 4096, 0); n != 4096 || err != nil {
		t.Errorf("wrote %d: %v", n, err)
	}
	must(t, errors.Join(df.Close(), s.Close(), e.Close(), other.Free(far), other.Close()))
	mine := openDirect(t, d)
	if n, err := mine.WriteAt(b.At(0), 4096, 0); n != 4096 || err != nil {
		t.Errorf("after the other device was closed, wrote %d: %v", n, err)
	}
}

// A device that is in use is not closed under what uses it, and one that is closed says so.
func TestCloseOfADeviceInUse(t *testing.T) {
	l := built(t)
	d, err := Open(Options{Library: l.CUDA, FileLibrary: l.CuFile})
	must(t, err)
	b, err := d.Alloc(4096)
	must(t, err)
	mem, err := d.AllocHost(4096)
	must(t, err)
	s, err := d.NewStream()
	must(t, err)
	refused := func(when string) {
		t.Helper()
		if err := d.Close(); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Fatalf("Close %s: %v", when, err)
		}
	}
	refused("with a stream")
	e, err := d.NewEvent()
	must(t, err)
	set(t, "hang", 1)
	must(t, errors.Join(s.ToDevice(b.At(0), mem), e.Record(s)))
	waited := make(chan error)
	go func() { waited <- e.Wait() }()
	must(t, s.Close())
	refused("with a copy under way")
	set(t, "hang", 0)
	must(t, <-waited)
	refused("with an event")
	must(t, e.Close())
	df, err := d.OpenDirect(create(t))
	must(t, err)
	if s.Close() == nil || e.Close() == nil {
		t.Error("closed twice")
	}
	refused("with a direct file")
	if n, err := df.WriteAt(b.At(0), 4096, 0); n != 4096 || err != nil {
		t.Errorf("after Close was refused, wrote %d: %v", n, err)
	}
	setFile(t, "fail_register", device.DirectFileSystem)
	if _, err := d.OpenDirect(create(t)); err == nil {
		t.Error("opened a file that cannot be registered")
	}
	must(t, df.Close())
	if df.Close() == nil {
		t.Error("closed a file twice")
	}
	must(t, errors.Join(d.Free(b), d.FreeHost(mem), d.Close(), d.Close()))
	if _, err := d.NewStream(); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a stream of a device that is closed: %v", err)
	}
	if _, err := d.OpenDirect(create(t)); err == nil {
		t.Error("a device that is closed opens a file")
	}
}

// An error of the machine's names the cure.
func TestCures(t *testing.T) {
	l := built(t)
	for code, cure := range map[int]string{100: "CUDA_VISIBLE_DEVICES", 34: "LD_LIBRARY_PATH", 803: "restart", 802: "fabricmanager", 999: "nvidia_uvm", 3: "forked"} {
		set(t, "fail_init", code)
		if _, err := Open(Options{Library: l.CUDA}); err == nil || !strings.Contains(err.Error(), cure) {
			t.Errorf("error %d: %v", code, err)
		}
	}
	set(t, "fail_init", 0)
	if _, err := Open(Options{Library: "/nowhere/libcuda.so.1"}); err == nil || !strings.Contains(err.Error(), "install the NVIDIA driver") {
		t.Errorf("no driver: %v", err)
	}
	d, err := Open(Options{Library: l.CUDA, FileLibrary: "/nowhere/libcufile.so.0"})
	must(t, err)
	if _, err := d.OpenDirect(create(t)); err == nil || !strings.Contains(err.Error(), "install GPUDirect Storage") {
		t.Errorf("no cuFile: %v", err)
	}
	must(t, d.Close())
}

// Sizes and offsets have 64 bits all the way, in memory and in files.
func TestBeyond4GiB(t *testing.T) {
	const gib = 1 << 30
	d := open(t)
	b := alloc(t, d, 5*gib)
	l := newLane(t, d, 8192)
	want := random(4096)
	copy(l.mem, want)
	at := b.At(5*gib - 4096)
	must(t, l.ToDevice(at, l.mem[:4096]))
	l.wait(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "sparse"))
	must(t, err)
	defer f.Close()
	df, err := d.OpenDirect(f)
	must(t, err)
	if n, err := df.WriteAt(at, 4096, 6*gib); n != 4096 || err != nil {
		t.Fatalf("wrote %d: %v", n, err)
	}
	if n, err := df.ReadAt(b.At(4*gib+4096), 4096, 6*gib); n != 4096 || err != nil {
		t.Fatalf("read %d: %v", n, err)
	}
	must(t, df.Close())
	got := make([]byte, 4096)
	if _, err := f.ReadAt(got, 6*gib); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has other bytes, %v", err)
	}
	must(t, l.ToHost(l.mem[4096:], b.At(4*gib+4096)))
	l.wait(t)
	if !bytes.Equal(l.mem[4096:], want) {
		t.Error("other bytes were read")
	}
}

// A buffer that is registered already, by an engine perhaps, is told from one that cannot be.
func TestBufferRegisteredTwice(t *testing.T) {
	d := open(t)
	b := alloc(t, d, 8192)
	again, err := device.NewBuffer(d, b.Addr(), b.SizeBytes())
	must(t, err)
	must(t, d.RegisterBuffer(b))
	var refused *device.DirectError
	if err := d.RegisterBuffer(again); !errors.As(err, &refused) || refused.Code != device.DirectRegistered {
		t.Errorf("%v", err)
	}
	must(t, d.UnregisterBuffer(b))
}
