package gdsfiles

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/gpudirect"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// accelerator is a device in host memory that has direct transfers, as cuFile's.
type accelerator struct {
	*device.Host

	// fail returns the error of the n-th call of a kind, from 1: register, open, move.
	fail func(call string, n int) error

	calls      map[string]*atomic.Int64
	moved      atomic.Int64 // bytes, directly
	returned   atomic.Int64 // reads
	inner      sync.Map     // *device.Buffer of a Host, by that of this device
	mu         sync.Mutex
	registered int64
	open       int
	flags      []int // of files that were opened
}

func newAccelerator(fail func(call string, n int) error) *accelerator {
	a := &accelerator{Host: device.NewHost(device.HostOptions{}), fail: fail, calls: map[string]*atomic.Int64{}}
	for _, call := range []string{"register", "open", "move"} {
		a.calls[call] = &atomic.Int64{}
	}
	return a
}

func (a *accelerator) called(call string) error {
	n := int(a.calls[call].Add(1))
	if a.fail == nil {
		return nil
	}
	return a.fail(call, n)
}

// memory returns memory of this device, which has it in a Host.
func (a *accelerator) memory(t *testing.T, sizeBytes int64) (*device.Buffer, []byte) {
	t.Helper()
	inner, err := a.Alloc(sizeBytes)
	if err != nil {
		t.Fatal(err)
	}
	b, err := device.NewBuffer(a, inner.Addr(), sizeBytes)
	if err != nil {
		t.Fatal(err)
	}
	a.inner.Store(b, inner)
	return b, inner.Bytes()
}

// at returns where a place is in the Host.
func (a *accelerator) at(p device.Place) device.Place {
	inner, _ := a.inner.Load(p.Buffer)
	return inner.(*device.Buffer).At(p.Offset)
}

func (a *accelerator) bytes(p device.Place, sizeBytes int64) []byte {
	at := a.at(p)
	return at.Buffer.Bytes()[at.Offset : at.Offset+sizeBytes]
}

func (a *accelerator) NewStream() (device.Stream, error) {
	s, err := a.Host.NewStream()
	return &stream{s, a}, err
}

func (a *accelerator) NewEvent() (device.Event, error) {
	e, err := a.Host.NewEvent()
	return &event{e}, err
}

type stream struct {
	device.Stream
	a *accelerator
}

func (s *stream) ToDevice(dst device.Place, src []byte) error {
	return s.Stream.ToDevice(s.a.at(dst), src)
}

func (s *stream) ToHost(dst []byte, src device.Place) error { return s.Stream.ToHost(dst, s.a.at(src)) }

type event struct{ device.Event }

func (e *event) Record(s device.Stream) error { return e.Event.Record(s.(*stream).Stream) }

func (a *accelerator) RegisterBuffer(b *device.Buffer) error {
	if err := a.called("register"); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.registered += b.SizeBytes()
	return nil
}

func (a *accelerator) UnregisterBuffer(b *device.Buffer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.registered -= b.SizeBytes()
	return nil
}

func (a *accelerator) OpenDirect(f *os.File) (device.DirectFile, error) {
	if err := a.called("open"); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open++
	flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), syscall.F_GETFL, 0)
	a.flags = append(a.flags, int(flags))
	return &directFile{a, f}, nil
}

type directFile struct {
	a *accelerator
	f *os.File
}

func (d *directFile) ReadAt(dst device.Place, sizeBytes, fileOffset int64) (int64, error) {
	defer d.a.returned.Add(1)
	if err := d.a.called("move"); err != nil {
		return 0, err
	}
	n, err := d.f.ReadAt(d.a.bytes(dst, sizeBytes), fileOffset)
	d.a.moved.Add(int64(n))
	if n > 0 {
		err = nil
	}
	return int64(n), err
}

func (d *directFile) WriteAt(src device.Place, sizeBytes, fileOffset int64) (int64, error) {
	if err := d.a.called("move"); err != nil {
		return 0, err
	}
	n, err := d.f.WriteAt(d.a.bytes(src, sizeBytes), fileOffset)
	d.a.moved.Add(int64(n))
	return int64(n), err
}

func (d *directFile) Close() error {
	d.a.mu.Lock()
	defer d.a.mu.Unlock()
	d.a.open--
	return nil
}

func cuFileError(code int) error {
	return &device.DirectError{Call: "cuFileRead", Code: code, Text: "internal error"}
}

// Whatever cuFile refuses, and whenever, blocks in the device's memory are saved and loaded, and
// what it does not refuse goes past host memory.
func TestDirect(t *testing.T) {
	const blocks = 12
	whole := 2 * blocks * layout.BlockBytes // saved and loaded
	for name, c := range map[string]struct {
		fail          func(call string, n int) error
		change        func(*Options)
		least, most   int64 // bytes that are moved directly
		warned, plain bool
		refused       int64 // buffers
	}{
		"nothing fails":        {least: whole, most: whole},
		"5030 at open":         {fail: func(call string, n int) error { return only(call == "open", cuFileError(5030)) }, warned: true},
		"5008 at open":         {fail: func(call string, n int) error { return only(call == "open", cuFileError(5008)) }, warned: true},
		"at the first":         {fail: func(call string, n int) error { return only(call == "move", cuFileError(device.DirectInternal)) }, warned: true},
		"once, later":          {fail: func(call string, n int) error { return only(call == "move" && n == 9, cuFileError(5030)) }, least: whole / 2, most: whole - layout.ShardBytes},
		"always, later":        {fail: func(call string, n int) error { return only(call == "move" && n > 20, cuFileError(5030)) }, least: layout.ShardBytes, most: whole / 2, warned: true},
		"registering":          {fail: func(call string, n int) error { return only(call == "register", cuFileError(5010)) }, warned: true},
		"this buffer":          {fail: func(call string, n int) error { return only(call == "register", cuFileError(5016)) }, refused: 1},
		"use_cufile: false":    {change: func(o *Options) { o.NoDirect = true }},
		"a small buffer":       {change: func(o *Options) { o.BufferBytes = 4096 }, least: whole, most: whole},
		"not a direct device":  {plain: true},
		"past the page cache":  {change: func(o *Options) { o.DirectIO = true }, least: 0, most: whole},
		"no checksums on load": {change: func(o *Options) { o.Checksums = kv.ChecksumsOff }, least: whole, most: whole},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAccelerator(c.fail)
			var log bytes.Buffer
			o := options(t.TempDir())
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			o.Device, o.Streams = a, 1
			if c.plain {
				o.Device = a.Host
			}
			if c.change != nil {
				c.change(&o)
			}
			if way, err := judge(o.Dirs[0]); err != nil || way.Way == gpudirect.Refused {
				t.Skip("GPUDirect Storage is refused here: ", way.Why, err)
			}
			s := open(t, o)
			buffer, memory := a.memory(t, blocks*layout.BlockBytes)
			if c.plain {
				buffer = a.Host.Wrap(memory)
			}
			var all []kv.Key
			var places []device.Place
			for n := range blocks {
				key := keys.Int64Key(int64(n) + 1)
				at := int64(n) * layout.BlockBytes
				all, places = append(all, key), append(places, buffer.At(at))
				copy(memory[at:], content(key))
			}
			shards := kv.ByBlockOn[kv.Shard](layout, all, places)
			task, err := s.Save(t.Context(), shards)
			if err == nil {
				err = task.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range all { // what is in the files is right
				if err := load(t, s, key); err != nil {
					t.Error(err)
				}
			}
			clear(memory)
			if task, err = s.Load(t.Context(), shards); err == nil {
				err = task.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			for n, key := range all {
				if !bytes.Equal(memory[int64(n)*layout.BlockBytes:int64(n+1)*layout.BlockBytes], content(key)) {
					t.Errorf("block %d: wrong bytes", n)
				}
			}
			if moved := a.moved.Load(); moved < c.least || moved > c.most {
				t.Errorf("%d bytes of %d were moved directly", moved, whole)
			}
			if warned := strings.Contains(log.String(), "no direct transfers any more"); warned != c.warned {
				t.Errorf("log: %s", log.String())
			}
			if got := s.Stats().DeviceTransfers; got.DirectBytes != a.moved.Load() || got.RefusedBuffers != c.refused || got.Buffered != 0 {
				t.Errorf("%+v, %d bytes were moved directly", got, a.moved.Load())
			}
			if a.registered > max(o.BufferBytes, blocks*layout.BlockBytes) || o.BufferBytes == 4096 && a.registered > 0 {
				t.Errorf("%d bytes are registered", a.registered)
			}
			for _, flags := range a.flags {
				if flags&(syscall.O_NONBLOCK|syscall.O_NOFOLLOW) != 0 {
					t.Errorf("a file was opened with %#x, which cuFile refuses", flags)
				}
			}
			if err := s.Close(); err != nil || a.open != 0 || a.registered != 0 {
				t.Errorf("after Close %d files are open and %d bytes registered: %v", a.open, a.registered, err)
			}
		})
	}
}

func only(when bool, err error) error {
	if when {
		return err
	}
	return nil
}

// Damage is found in the device's memory as in the host's, and errors of the disk are none of
// cuFile's refusals.
func TestDirectDamage(t *testing.T) {
	failing := errors.New("nothing")
	a := newAccelerator(func(call string, n int) error { return only(call == "move" && failing == syscall.EIO, failing) })
	o := options(t.TempDir())
	o.Device = a
	s := open(t, o)
	key := keys.Int64Key(55)
	save(t, s, key)
	buffer, _ := a.memory(t, layout.BlockBytes)
	shards := kv.ByBlockOn[kv.Shard](layout, []kv.Key{key}, []device.Place{buffer.At(0)})
	fetch := func() error {
		task, err := s.Load(t.Context(), shards)
		if err != nil {
			t.Fatal(err)
		}
		return task.Wait(t.Context())
	}
	if err := fetch(); err != nil {
		t.Fatal(err)
	}
	if a.moved.Load() == 0 {
		t.Skip("GPUDirect Storage is refused here")
	}
	failing = syscall.EIO
	if err := fetch(); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v", err)
	}
	failing = nil
	save(t, s, key)
	f, err := newFormat(o, false)
	if err != nil {
		t.Fatal(err)
	}
	at, err := f.Place(key)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(o.Dirs[0]+"/"+at.Dir+"/"+at.Name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte("damage"), 5000); err != nil {
		t.Fatal(err)
	}
	if err := fetch(); !errors.Is(err, kv.ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

// A direct transfer that does not return in time leaves the buffer to the device.
func TestLateDirect(t *testing.T) {
	late := make(chan struct{})
	var slow atomic.Bool
	a := newAccelerator(func(call string, n int) error {
		if call == "move" && slow.Load() {
			<-late
		}
		return nil
	})
	o := options(t.TempDir())
	o.Device, o.Timeout = a, 200*time.Millisecond
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	key := keys.Int64Key(77)
	save(t, s, key)
	slow.Store(true)
	buffer, _ := a.memory(t, layout.BlockBytes)
	task, err := s.Load(t.Context(), kv.ByBlockOn[kv.Shard](layout, []kv.Key{key}, []device.Place{buffer.At(0)}))
	if err != nil {
		t.Fatal(err)
	}
	err = task.Wait(t.Context())
	if err == nil && a.moved.Load() == 0 {
		t.Skip("GPUDirect Storage is refused here")
	}
	if !errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("%v", err)
	}
	close(late)
	for a.returned.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
