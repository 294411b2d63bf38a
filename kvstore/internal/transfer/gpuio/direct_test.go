package gpuio

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// accelerator is a Host with direct transfers, which it counts.
type accelerator struct {
	*device.Host
	registerErr, openErr     error
	refuse                   func(call string, b *device.Buffer) error // nil: nothing
	registered, unregistered int
	read, written            int64
	flags                    []int // of the descriptors it was given
}

func (a *accelerator) refusal(call string, b *device.Buffer) error {
	if a.refuse == nil {
		return nil
	}
	return a.refuse(call, b)
}

func (a *accelerator) RegisterBuffer(b *device.Buffer) error {
	if err := a.refusal("register", b); err != nil {
		return err
	}
	if a.registerErr == nil {
		a.registered++
	}
	return a.registerErr
}

func (a *accelerator) UnregisterBuffer(*device.Buffer) error {
	a.unregistered++
	return nil
}

func (a *accelerator) OpenDirect(f *os.File) (device.DirectFile, error) {
	if a.openErr != nil {
		return nil, a.openErr
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	a.flags = append(a.flags, flags)
	return &directFile{a, f}, err
}

type directFile struct {
	a *accelerator
	f *os.File
}

func (d *directFile) ReadAt(dst device.Place, sizeBytes, fileOffset int64) (int64, error) {
	if err := d.a.refusal("move", dst.Buffer); err != nil {
		return 0, err
	}
	n, err := d.f.ReadAt(dst.Buffer.Bytes()[dst.Offset:][:sizeBytes], fileOffset)
	d.a.read += int64(n)
	if n > 0 {
		err = nil
	}
	return int64(n), err
}

func (d *directFile) WriteAt(src device.Place, sizeBytes, fileOffset int64) (int64, error) {
	if err := d.a.refusal("move", src.Buffer); err != nil {
		return 0, err
	}
	n, err := d.f.WriteAt(src.Buffer.Bytes()[src.Offset:][:sizeBytes], fileOffset)
	d.a.written += int64(n)
	return int64(n), err
}

func (d *directFile) Close() error { return nil }

func newAccelerator() *accelerator {
	return &accelerator{Host: device.NewHost(device.HostOptions{})}
}

func openFile(t *testing.T, flags int) *os.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return reopened(t, name, flags)
}

func reopened(t *testing.T, name string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, flags, 0)
	if errors.Is(err, unix.EINVAL) {
		t.Skip("this file system has no direct I/O")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// closing closes what a test has used, which must leave nothing.
func closing(t *testing.T, m *Mover, f interface{ Close() error }) {
	t.Cleanup(func() {
		if err := errors.Join(f.Close(), m.Close(), m.o.Device.Close()); err != nil {
			t.Error(err)
		}
	})
}

func pattern(sizeBytes int) []byte {
	b := make([]byte, sizeBytes)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// Moves of any offset and size work, whether or not the file bypasses the page cache and whether
// or not the device has direct transfers. Writes are direct where they are aligned.
func TestMovesOfAnySize(t *testing.T) {
	for name, c := range map[string]struct {
		flags  int
		direct bool
	}{
		"page cache": {os.O_RDWR, false}, "direct I/O": {os.O_RDWR | unix.O_DIRECT, false},
		"transfers past the host": {os.O_RDWR, true}, "both": {os.O_RDWR | unix.O_DIRECT, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, move := range []struct{ offset, size int }{
				{0, 4096}, {4096, 8192}, {100, 5000}, {4095, 2}, {8192, 1}, {0, stageBytes + 4096}, {3, stageBytes + 1},
			} {
				a := newAccelerator()
				m := New(Options{Device: a, Direct: c.direct})
				f := m.Open(openFile(t, c.flags))
				closing(t, m, f)
				want := pattern(move.size)
				b := a.Wrap(append(make([]byte, 16), want...))
				at, back := b.At(16), a.Wrap(make([]byte, move.size+8)).At(8)
				op := transfer.Op{Device: &at, Offset: int64(move.offset), Bytes: move.size, Write: true}
				if n, err := f.Move(op); n != move.size || err != nil {
					t.Fatalf("%+v: wrote %d: %v", move, n, err)
				}
				op.Device, op.Write = &back, false
				var shown []byte
				op.Piece = func(b []byte) { shown = append(shown, b...) }
				if n, err := f.Move(op); n != move.size || err != nil {
					t.Fatalf("%+v: read %d: %v", move, n, err)
				}
				if !bytes.Equal(back.Buffer.Bytes()[8:], want) || !bytes.Equal(shown, want) {
					t.Errorf("%+v: other bytes were read", move)
				}
				if whole := move.offset%sectorBytes == 0 && move.size%sectorBytes == 0; c.direct && whole != (a.written == int64(move.size)) {
					t.Errorf("%+v: %d bytes were written directly", move, a.written)
				}
				if c.direct && c.flags&unix.O_DIRECT == 0 && a.read != int64(move.size) {
					t.Errorf("%+v: %d bytes were read directly", move, a.read)
				}
			}
		})
	}
}

// What is read past the end of the file stops there.
func TestEndOfTheFile(t *testing.T) {
	a := newAccelerator()
	m := New(Options{Device: a})
	file := openFile(t, os.O_RDWR)
	f := m.Open(file)
	closing(t, m, f)
	if err := os.WriteFile(file.Name(), pattern(5000), 0o600); err != nil {
		t.Fatal(err)
	}
	at := a.Wrap(make([]byte, 8192)).At(0)
	if n, err := f.Move(transfer.Op{Device: &at, Bytes: 8192}); n != 5000 || err != nil {
		t.Errorf("read %d: %v", n, err)
	}
}

// A file that was opened for reading is registered so, and one for writing can be read and
// written, whichever comes first.
func TestDescriptorsOfDirectFiles(t *testing.T) {
	a := newAccelerator()
	m := New(Options{Device: a, Direct: true})
	file := openFile(t, os.O_RDWR|unix.O_NONBLOCK)
	if err := os.WriteFile(file.Name(), pattern(4096), 0o600); err != nil {
		t.Fatal(err)
	}
	at := a.Wrap(make([]byte, 4096)).At(0)
	read := m.Open(reopened(t, file.Name(), os.O_RDONLY))
	write := m.Open(file)
	closing(t, m, closers{read, write})
	for _, op := range []struct {
		move  func(transfer.Op) (int, error)
		write bool
	}{{read.Move, false}, {write.Move, false}, {write.Move, true}} {
		if n, err := op.move(transfer.Op{Device: &at, Bytes: 4096, Write: op.write}); n != 4096 || err != nil {
			t.Errorf("moved %d, write %t: %v", n, op.write, err)
		}
	}
	if len(a.flags) != 2 || a.flags[0]&unix.O_ACCMODE != unix.O_RDONLY || a.flags[1]&unix.O_ACCMODE != unix.O_RDWR || a.flags[1]&unix.O_NONBLOCK != 0 {
		t.Errorf("descriptors with flags %#x", a.flags)
	}
	if a.written != 4096 || a.read != 8192 {
		t.Errorf("read %d and wrote %d directly", a.read, a.written)
	}
}

type closers [2]interface{ Close() error }

func (c closers) Close() error { return errors.Join(c[0].Close(), c[1].Close()) }

// A buffer that the engine has registered itself is used and stays registered. Whatever else
// stands in the way of direct transfers, a missing library included, ends them, and bytes move.
func TestRefusals(t *testing.T) {
	registered := &device.DirectError{Call: "cuFileBufRegister", Code: device.DirectRegistered}
	missing := errors.New("no such library")
	for name, c := range map[string]struct {
		register, open error
		direct         bool
	}{
		"nothing":            {nil, nil, true},
		"registered already": {registered, nil, true},
		"no library":         {missing, missing, false},
		"open fails":         {nil, missing, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAccelerator()
			a.registerErr, a.openErr = c.register, c.open
			m := New(Options{Device: a, Direct: true, BufferBytes: 1 << 20})
			f := m.Open(openFile(t, os.O_RDWR))
			at := a.Wrap(pattern(8192)).At(0)
			for _, write := range []bool{true, false} {
				if n, err := f.Move(transfer.Op{Device: &at, Bytes: 8192, Write: write}); n != 8192 || err != nil {
					t.Fatalf("moved %d: %v", n, err)
				}
			}
			if m.Direct() != c.direct || (a.written == 8192) != c.direct {
				t.Errorf("direct transfers: %t, %d bytes", m.Direct(), a.written)
			}
			if err := errors.Join(f.Close(), m.Close()); err != nil || a.unregistered != a.registered {
				t.Errorf("registered %d times and unregistered %d: %v", a.registered, a.unregistered, err)
			}
		})
	}
}

// Copies are counted, and direct transfers are none.
func TestCopiesAreCounted(t *testing.T) {
	broken := errors.New("broken")
	var fail, lost bool
	o := device.HostOptions{
		Before:    func(device.Copy) error { return only(fail, broken) },
		WaitError: func() error { return only(lost, broken) },
	}
	a := &accelerator{Host: device.NewHost(o)}
	m := New(Options{Device: a, Direct: true})
	f := m.Open(openFile(t, os.O_RDWR))
	closing(t, m, f)
	at := a.Wrap(pattern(8192)).At(0)
	if _, err := f.Move(transfer.Op{Device: &at, Bytes: 8192, Write: true}); err != nil {
		t.Fatal(err)
	}
	if got := m.Copies(); got != (kv.DeviceCopies{}) {
		t.Errorf("a direct transfer: %+v", got)
	}
	if _, err := f.Move(transfer.Op{Device: &at, Bytes: 8192, Write: true, Piece: func([]byte) {}}); err != nil {
		t.Fatal(err)
	}
	fail = true
	if _, err := m.Bytes(at, 8192); !errors.Is(err, broken) {
		t.Error(err)
	}
	fail, lost = false, true
	if _, err := m.Bytes(at, 8192); !errors.Is(err, kv.ErrAbandoned) {
		t.Error(err)
	}
	if got, want := m.Copies(), (kv.DeviceCopies{Copies: 1, Bytes: 8192, Failed: 1, Abandoned: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func only(is bool, err error) error {
	if is {
		return err
	}
	return nil
}

// A copy that has failed and cannot be waited for may still write into the caller's memory, so
// that its error says that the memory is not the caller's again.
func TestCopiesThatMayStillRun(t *testing.T) {
	broken := errors.New("broken")
	var lost bool
	a := &accelerator{Host: device.NewHost(device.HostOptions{WaitError: func() error { return only(lost, broken) }})}
	m := New(Options{Device: a})
	f := m.Open(openFile(t, os.O_RDWR))
	closing(t, m, f)
	at := a.Wrap(pattern(8192)).At(0)
	for _, write := range []bool{true, false} {
		lost = false
		if _, err := f.Move(transfer.Op{Device: &at, Bytes: 8192, Write: true}); err != nil {
			t.Fatal(err)
		}
		lost = true
		if _, err := f.Move(transfer.Op{Device: &at, Bytes: 8192, Write: write}); !errors.Is(err, kv.ErrAbandoned) {
			t.Errorf("write %t: %v", write, err)
		}
	}
}
