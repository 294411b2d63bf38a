package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kv3fs/kv3fs/kvstore/device"
)

// Options say which device Open opens, and where its libraries are. The zero value is the
// first device.
type Options struct {
	// Ordinal is the number of the device among those that CUDA_VISIBLE_DEVICES shows.
	Ordinal int

	// Library is the driver's library; default libcuda.so.1, as the loader finds it.
	Library string
	// FileLibrary is cuFile's; default libcufile.so.0. It is loaded when the first file is
	// opened or the first buffer is registered.
	FileLibrary string
}

// Device is a CUDA device with its primary context, which CUDA's runtime API and so an
// engine in this process use as well.
type Device struct {
	driver  *driver
	ordinal int32
	context uintptr
	name    string
	files   files

	mu         sync.Mutex
	registered map[*byte][]byte // keeps what is registered from the garbage collector
	users      int              // calls under way, and streams, events and direct files that are open
	closed     bool
}

var (
	_ device.Device = (*Device)(nil)
	_ device.Direct = (*Device)(nil)
	_ device.Stream = (*stream)(nil)
	_ device.Event  = (*event)(nil)
)

// Error is an error of the driver API.
type Error struct {
	Call   string
	Code   int    // CUresult
	Symbol string // its name
}

func (e *Error) Error() string {
	text := fmt.Sprintf("cuda: %s: %s (%d)", e.Call, e.Symbol, e.Code)
	if cure := cures[e.Code]; cure != "" {
		text += "; " + cure
	}
	return text
}

// cures says what can be done about errors of CUDA's that are the machine's.
var cures = map[int]string{
	3:   "a process that has forked cannot use CUDA in the child: open the device there first",
	34:  "the library is the stub of CUDA's toolkit, for linkers: take its directory out of LD_LIBRARY_PATH",
	100: "no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES; a container is given its GPUs by --gpus",
	802: "the GPUs' fabric is not ready: start nvidia-fabricmanager",
	803: "the driver's library and its kernel module have different versions: restart the machine, or give the container the host's library",
	999: "the kernel module nvidia_uvm may not be loaded: run nvidia-modprobe -u",
}

// Open loads the driver's library and opens a device. The caller closes it.
func Open(o Options) (*Device, error) {
	if o.Library == "" {
		o.Library = "libcuda.so.1"
	}
	if o.FileLibrary == "" {
		o.FileLibrary = "libcufile.so.0"
	}
	driver, err := loadDriver(o.Library)
	if err != nil {
		return nil, err
	}
	d := &Device{driver: driver, registered: map[*byte][]byte{}}
	d.files.path = o.FileLibrary
	if err := d.check("cuInit", driver.cuInit(0)); err != nil {
		return nil, err
	}
	var count int32
	if err := d.check("cuDeviceGetCount", driver.cuDeviceGetCount(&count)); err != nil {
		return nil, err
	}
	if o.Ordinal < 0 || o.Ordinal >= int(count) {
		return nil, fmt.Errorf("cuda: there is no device %d; CUDA sees %d", o.Ordinal, count)
	}
	if err := d.check("cuDeviceGet", driver.cuDeviceGet(&d.ordinal, int32(o.Ordinal))); err != nil {
		return nil, err
	}
	var name [256]byte
	if err := d.check("cuDeviceGetName", driver.cuDeviceGetName(&name[0], int32(len(name)), d.ordinal)); err != nil {
		return nil, err
	}
	model, _, _ := bytes.Cut(name[:], []byte{0})
	d.name = fmt.Sprintf("%s (CUDA %d)", model, o.Ordinal)
	if err := d.check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(&d.context, d.ordinal)); err != nil {
		return nil, err
	}
	return d, nil
}

// check turns a CUresult into an error.
func (d *Device) check(call string, result int32) error {
	if result == 0 {
		return nil
	}
	symbol := "unknown error"
	var name unsafe.Pointer
	if d.driver.cuGetErrorName(result, &name) == 0 {
		symbol = text(name)
	}
	return &Error{call, int(result), symbol}
}

// in calls the driver on a thread that has the device's context.
func (d *Device) in(call string, fn func() int32) error {
	return d.with(func() error { return d.check(call, fn()) })
}

// with calls do on a thread that has the device's context, which then has again what it had
// before: threads are not this package's, and an engine may depend on theirs.
func (d *Device) with(do func() error) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.check("cuCtxPushCurrent", d.driver.cuCtxPushCurrent_v2(d.context)); err != nil {
		return err
	}
	err := do()
	var popped uintptr
	if e := d.check("cuCtxPopCurrent", d.driver.cuCtxPopCurrent_v2(&popped)); err == nil {
		err = e
	}
	return err
}

// enter begins a use of the device, which leave ends.
func (d *Device) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("cuda: %s is closed", d.name)
	}
	d.users++
	return nil
}

func (d *Device) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users--
}

// open makes something that is in use until it calls leave.
func (d *Device) open(call string, fn func() int32) error {
	if err := d.enter(); err != nil {
		return err
	}
	err := d.in(call, fn)
	if err != nil {
		d.leave()
	}
	return err
}

// Name returns the model and the number.
func (d *Device) Name() string { return d.name }

// Alloc allocates memory with cuMemAlloc.
func (d *Device) Alloc(sizeBytes int64) (*device.Buffer, error) {
	if sizeBytes <= 0 {
		return nil, fmt.Errorf("cuda: cannot allocate %d bytes", sizeBytes)
	}
	var at uint64
	if err := d.in("cuMemAlloc", func() int32 { return d.driver.cuMemAlloc_v2(&at, uintptr(sizeBytes)) }); err != nil {
		return nil, fmt.Errorf("%w, of %d bytes", err, sizeBytes)
	}
	return device.NewBuffer(d, at, sizeBytes)
}

// Free releases what Alloc returned.
func (d *Device) Free(b *device.Buffer) error {
	return d.in("cuMemFree", func() int32 { return d.driver.cuMemFree_v2(b.Addr()) })
}

// AllocHost allocates pinned memory with cuMemHostAlloc.
func (d *Device) AllocHost(sizeBytes int64) ([]byte, error) {
	if sizeBytes <= 0 {
		return nil, fmt.Errorf("cuda: cannot allocate %d bytes of pinned memory", sizeBytes)
	}
	var mem unsafe.Pointer
	err := d.in("cuMemHostAlloc", func() int32 { return d.driver.cuMemHostAlloc(&mem, uintptr(sizeBytes), memHostAllocPortable) })
	if err != nil {
		return nil, fmt.Errorf("%w, of %d bytes", err, sizeBytes)
	}
	return unsafe.Slice((*byte)(mem), sizeBytes), nil
}

// FreeHost releases what AllocHost returned.
func (d *Device) FreeHost(mem []byte) error {
	return d.in("cuMemFreeHost", func() int32 { return d.driver.cuMemFreeHost(unsafe.Pointer(unsafe.SliceData(mem))) })
}

// Register pins memory with cuMemHostRegister.
func (d *Device) Register(mem []byte) error {
	if len(mem) == 0 {
		return errors.New("cuda: cannot register no memory")
	}
	err := d.in("cuMemHostRegister", func() int32 {
		return d.driver.cuMemHostRegister_v2(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), memHostRegisterPortable)
	})
	if err != nil {
		return fmt.Errorf("%w, of %d bytes; make the cache smaller, or raise the container's limit of memory", err, len(mem))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.registered[unsafe.SliceData(mem)] = mem
	return nil
}

// Unregister undoes Register.
func (d *Device) Unregister(mem []byte) error {
	at := unsafe.SliceData(mem)
	err := d.in("cuMemHostUnregister", func() int32 { return d.driver.cuMemHostUnregister(unsafe.Pointer(at)) })
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.registered, at)
	return nil
}

// NewStream returns a stream that does not wait for the default stream.
func (d *Device) NewStream() (device.Stream, error) {
	s := &stream{device: d}
	if err := d.open("cuStreamCreate", func() int32 { return d.driver.cuStreamCreate(&s.handle, streamNonBlocking) }); err != nil {
		return nil, err
	}
	return s, nil
}

// NewEvent returns an event whose Wait leaves the processor to others.
func (d *Device) NewEvent() (device.Event, error) {
	e := &event{device: d, own: true}
	err := d.open("cuEventCreate", func() int32 { return d.driver.cuEventCreate(&e.handle, eventBlockingSync|eventDisableTiming) })
	if err != nil {
		return nil, err
	}
	return e, nil
}

// EventOf returns an event that something else has made and records, such as an engine: a
// CUevent, which is also a cudaEvent_t. Close leaves it as it is.
func (d *Device) EventOf(handle uintptr) device.Event { return &event{device: d, handle: handle} }

// Close releases the primary context, and what is left of the device's and pinned memory with
// it unless an engine keeps it. While a stream, an event or a direct file is open or a call is
// under way, it does nothing and returns an error at once: copies may be running. Closing twice
// is harmless.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	if d.users > 0 {
		return fmt.Errorf("cuda: %s is in use: %d streams, events, direct files and calls have not ended; close what uses it first", d.name, d.users)
	}
	d.closed = true
	return d.check("cuDevicePrimaryCtxRelease", d.driver.cuDevicePrimaryCtxRelease_v2(d.ordinal))
}

var errClosed = errors.New("cuda: closed already")

// stream is a CUstream.
type stream struct {
	device *Device
	handle uintptr
	closed atomic.Bool
}

func (s *stream) ToDevice(dst device.Place, src []byte) error {
	if err := s.device.mine(dst, int64(len(src))); err != nil {
		return err
	}
	return s.device.in("cuMemcpyHtoDAsync", func() int32 {
		return s.device.driver.cuMemcpyHtoDAsync_v2(dst.Addr(), unsafe.Pointer(unsafe.SliceData(src)), uintptr(len(src)), s.handle)
	})
}

func (s *stream) ToHost(dst []byte, src device.Place) error {
	if err := s.device.mine(src, int64(len(dst))); err != nil {
		return err
	}
	return s.device.in("cuMemcpyDtoHAsync", func() int32 {
		return s.device.driver.cuMemcpyDtoHAsync_v2(unsafe.Pointer(unsafe.SliceData(dst)), src.Addr(), uintptr(len(dst)), s.handle)
	})
}

// mine checks that a place has so many bytes in the device's memory.
func (d *Device) mine(p device.Place, sizeBytes int64) error {
	if err := p.Check(sizeBytes); err != nil {
		return err
	}
	if p.Buffer.Device() != device.Device(d) {
		return fmt.Errorf("cuda: memory of another device, %s", p.Buffer.Device().Name())
	}
	return nil
}

func (s *stream) After(e device.Event) error {
	event, ok := e.(*event)
	if !ok {
		return errors.New("cuda: an event of another device")
	}
	return s.device.in("cuStreamWaitEvent", func() int32 { return s.device.driver.cuStreamWaitEvent(s.handle, event.handle, 0) })
}

func (s *stream) Close() error {
	if s.closed.Swap(true) {
		return errClosed
	}
	defer s.device.leave()
	return s.device.in("cuStreamDestroy", func() int32 { return s.device.driver.cuStreamDestroy_v2(s.handle) })
}

// event is a CUevent.
type event struct {
	device *Device
	handle uintptr
	own    bool
	closed atomic.Bool
}

func (e *event) Record(s device.Stream) error {
	stream, ok := s.(*stream)
	if !ok {
		return errors.New("cuda: a stream of another device")
	}
	return e.device.in("cuEventRecord", func() int32 { return e.device.driver.cuEventRecord(e.handle, stream.handle) })
}

func (e *event) Wait() error {
	return e.device.in("cuEventSynchronize", func() int32 { return e.device.driver.cuEventSynchronize(e.handle) })
}

func (e *event) Close() error {
	if !e.own {
		return nil
	}
	if e.closed.Swap(true) {
		return errClosed
	}
	defer e.device.leave()
	return e.device.in("cuEventDestroy", func() int32 { return e.device.driver.cuEventDestroy_v2(e.handle) })
}
