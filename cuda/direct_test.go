package cuda

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/device"
)

func create(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f
}

func TestDirectTransfers(t *testing.T) {
	d := open(t)
	setFile(t, "most", 70000) // of one call
	b := alloc(t, d, 1<<20)
	l := newLane(t, d, 1<<20)
	must(t, d.RegisterBuffer(b))
	f := create(t)
	df, err := d.OpenDirect(f)
	must(t, err)
	want := random(300000)
	copy(l.mem, want)
	must(t, l.ToDevice(b.At(4096), l.mem[:len(want)]))
	l.wait(t)
	if n, err := df.WriteAt(b.At(4096), int64(len(want)), 8192); n != int64(len(want)) || err != nil {
		t.Fatalf("wrote %d: %v", n, err)
	}
	got, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(got[8192:], want) || bytes.Count(got[:8192], []byte{0}) != 8192 {
		t.Errorf("the file has other bytes, %v", err)
	}
	if n, err := df.ReadAt(b.At(500000), 400000, 8192); n != int64(len(want)) || err != nil {
		t.Errorf("read %d of what ends at %d: %v", n, len(want), err)
	}
	must(t, l.ToHost(l.mem[:len(want)], b.At(500000)))
	l.wait(t)
	if !bytes.Equal(l.mem[:len(want)], want) {
		t.Error("other bytes were read")
	}
	if _, err := df.ReadAt(b.At(1<<20-10), 11, 0); err == nil {
		t.Error("read beyond the end of the buffer")
	}
	must(t, df.Close())
	must(t, d.UnregisterBuffer(b))
}

func TestDirectErrors(t *testing.T) {
	without, err := Open(Options{Library: built(t).CUDA, FileLibrary: "/nowhere/libcufile.so.0"})
	must(t, err)
	if _, err := without.OpenDirect(create(t)); err == nil {
		t.Error("opened a file without cuFile")
	}
	must(t, without.Close())
	number := func(err error) int {
		var e *device.DirectError
		if errors.As(err, &e) {
			return e.Code
		}
		t.Errorf("not an error with a number: %v", err)
		return 0
	}
	setFile(t, "fail_open", device.DirectNotInitialized)
	bad := open(t)
	if _, err := bad.OpenDirect(create(t)); number(err) != 5001 {
		t.Errorf("without its driver: %v", err)
	}
	setFile(t, "fail_open", 0)
	d := open(t)
	b := alloc(t, d, 8192)
	setFile(t, "fail_register", device.DirectFileSystem)
	if _, err := d.OpenDirect(create(t)); number(err) != 5008 {
		t.Errorf("a file system that cannot: %v", err)
	}
	setFile(t, "fail_register", 0)
	setFile(t, "fail_buffer", 5011)
	if err := d.RegisterBuffer(b); number(err) != 5011 || !bytes.Contains([]byte(err.Error()), []byte("CUDA error 1")) {
		t.Errorf("a buffer that cannot be registered: %v", err)
	}
	df, err := d.OpenDirect(create(t))
	must(t, err)
	setFile(t, "fail_move", device.DirectInternal)
	if _, err := df.WriteAt(b.At(0), 4096, 0); number(err) != 5030 {
		t.Errorf("the first transfer fails: %v", err)
	}
	setFile(t, "fail_move", 0)
	setFile(t, "fail_errno", int(syscall.EIO))
	if n, err := df.ReadAt(b.At(0), 4096, 0); n != 0 || !errors.Is(err, syscall.EIO) {
		t.Errorf("a disk that cannot be read: %d, %v", n, err)
	}
	must(t, df.Close())
}
