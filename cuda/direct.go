package cuda

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kv3fs/kv3fs/kvstore/device"
)

// files is cuFile, once it was needed.
type files struct {
	path string

	mu     sync.Mutex
	tried  bool
	driver *fileDriver
	err    error
}

// handleOpaqueFD is CU_FILE_HANDLE_TYPE_OPAQUE_FD, from cufile.h.
const handleOpaqueFD = 1

// descriptor is a CUfileDescr_t.
type descriptor struct {
	kind  int32
	_     int32
	fd    int32
	_     int32
	fsOps uintptr
}

// open loads cuFile and opens its driver, once.
func (f *files) open() (*fileDriver, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.tried {
		f.tried = true
		f.driver, f.err = loadFileDriver(f.path)
		if f.err == nil {
			f.err = status("cuFileDriverOpen", f.driver.cuFileDriverOpen())
		}
	}
	return f.driver, f.err
}

func (f *files) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.driver == nil || f.err != nil {
		return nil
	}
	f.err = os.ErrClosed
	return status("cuFileDriverClose", f.driver.cuFileDriverClose())
}

// status turns a CUfileError_t into an error: its own number, and for some a CUresult.
func status(call string, result uint64) error {
	code := int32(result)
	if code == 0 {
		return nil
	}
	text := codes(int(code))
	if cu := int32(result >> 32); cu != 0 {
		text = fmt.Sprintf("%s; CUDA error %d", text, cu)
	}
	return &device.DirectError{Call: call, Code: int(code), Text: text}
}

// codes says what numbers of cuFile mean.
func codes(code int) string {
	switch code {
	case device.DirectNotInitialized:
		return "the nvidia-fs driver is not loaded"
	case device.DirectPlatform:
		return "GPUDirect Storage is not supported on this platform"
	case device.DirectFileSystem:
		return "GPUDirect Storage is not supported on this file system"
	case device.DirectDevice:
		return "GPUDirect Storage is not supported on this device"
	case device.DirectInternal:
		return "internal error"
	}
	return "see CUfileOpError in cuFile's API reference"
}

// RegisterBuffer registers device memory with cuFileBufRegister.
func (d *Device) RegisterBuffer(b *device.Buffer) error {
	f, err := d.files.open()
	if err != nil {
		return err
	}
	return d.file("cuFileBufRegister", func() uint64 { return f.cuFileBufRegister(b.Addr(), uintptr(b.SizeBytes()), 0) })
}

// UnregisterBuffer undoes it.
func (d *Device) UnregisterBuffer(b *device.Buffer) error {
	f, err := d.files.open()
	if err != nil {
		return err
	}
	return d.file("cuFileBufDeregister", func() uint64 { return f.cuFileBufDeregister(b.Addr()) })
}

// file calls cuFile on a thread that has the device's context.
func (d *Device) file(call string, fn func() uint64) (err error) {
	in := d.in("cuCtxSetCurrent", func() int32 {
		err = status(call, fn())
		return 0
	})
	if in != nil {
		return in
	}
	return err
}

// OpenDirect registers a file with cuFileHandleRegister.
func (d *Device) OpenDirect(f *os.File) (device.DirectFile, error) {
	driver, err := d.files.open()
	if err != nil {
		return nil, err
	}
	descr := descriptor{kind: handleOpaqueFD, fd: int32(f.Fd())}
	opened := &directFile{device: d, driver: driver}
	err = d.file("cuFileHandleRegister", func() uint64 { return driver.cuFileHandleRegister(&opened.handle, unsafe.Pointer(&descr)) })
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// directFile is a CUfileHandle_t.
type directFile struct {
	device *Device
	driver *fileDriver
	handle uintptr
}

func (f *directFile) ReadAt(dst device.Place, sizeBytes, fileOffset int64) (int64, error) {
	return f.move("cuFileRead", f.driver.read, dst, sizeBytes, fileOffset)
}

func (f *directFile) WriteAt(src device.Place, sizeBytes, fileOffset int64) (int64, error) {
	n, err := f.move("cuFileWrite", f.driver.write, src, sizeBytes, fileOffset)
	if err == nil && n < sizeBytes {
		err = io.ErrShortWrite
	}
	return n, err
}

// move calls until everything is moved, or nothing more is.
func (f *directFile) move(call string, fn uintptr, at device.Place, sizeBytes, fileOffset int64) (moved int64, err error) {
	if err := f.device.mine(at, sizeBytes); err != nil {
		return 0, err
	}
	for moved < sizeBytes {
		n, err := f.once(call, fn, at.Buffer.Addr(), sizeBytes-moved, fileOffset+moved, at.Offset+moved)
		if n <= 0 || err != nil {
			return moved, err
		}
		moved += n
	}
	return moved, nil
}

// once makes one call. It returns a count, or -1 with errno, or the negative of a number of
// cuFile's.
func (f *directFile) once(call string, fn uintptr, base uint64, sizeBytes, fileOffset, offset int64) (int64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := f.device.check("cuCtxSetCurrent", f.device.driver.cuCtxSetCurrent(f.device.context)); err != nil {
		return 0, err
	}
	r, _, _ := purego.SyscallN(fn, f.handle, uintptr(base), uintptr(sizeBytes), uintptr(fileOffset), uintptr(offset))
	switch n := int64(r); {
	case n == -1:
		return 0, fmt.Errorf("cuda: %s: %w", call, syscall.Errno(*f.driver.errnoLocation()))
	case n < 0:
		return 0, &device.DirectError{Call: call, Code: int(-n), Text: codes(int(-n))}
	default:
		return n, nil
	}
}

func (f *directFile) Close() error {
	return f.device.file("cuFileHandleDeregister", func() uint64 {
		f.driver.cuFileHandleDeregister(f.handle)
		return 0
	})
}
