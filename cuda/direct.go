package cuda

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
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

// Constants of cufile.h.
const (
	handleOpaqueFD    = 1    // CU_FILE_HANDLE_TYPE_OPAQUE_FD
	driverAlreadyOpen = 5026 // CU_FILE_DRIVER_ALREADY_OPEN
)

// descriptor is a CUfileDescr_t.
type descriptor struct {
	kind  int32
	_     int32
	fd    int32
	_     int32
	fsOps uintptr
}

// cuFile loads cuFile and opens its driver, once. The process has one driver, which other
// devices and an engine use as well, so it is never closed: that ends with the process.
func (d *Device) cuFile() (*fileDriver, error) {
	f := &d.files
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tried {
		return f.driver, f.err
	}
	f.tried = true
	if f.driver, f.err = loadFileDriver(f.path); f.err != nil {
		return nil, f.err
	}
	err := d.file("cuFileDriverOpen", f.driver.cuFileDriverOpen)
	var refused *device.DirectError
	if !errors.As(err, &refused) || refused.Code != driverAlreadyOpen {
		f.err = err
	}
	return f.driver, f.err
}

// status turns a CUfileError_t into an error: its own number, and for some a CUresult.
func status(call string, result uint64) error {
	code := int32(result)
	if code == 0 {
		return nil
	}
	text := codes[int(code)]
	if cu := int32(result >> 32); cu != 0 {
		text = fmt.Sprintf("%s; CUDA error %d", text, cu)
	}
	return &device.DirectError{Call: call, Code: int(code), Text: text}
}

// codes says what numbers of cuFile mean: CUfileOpError in its API reference.
var codes = map[int]string{
	device.DirectNotInitialized: "cuFile cannot reach the kernel module nvidia-fs: load it, or allow the compatibility mode in cufile.json",
	5002:                        "a property of cufile.json is not valid",
	5003:                        "a property of cufile.json is out of range",
	5004:                        "cuFile and nvidia-fs have versions that do not fit together",
	5005:                        "the version of nvidia-fs cannot be read",
	5006:                        "the driver is being closed",
	device.DirectPlatform:       "GPUDirect Storage is not supported on this platform",
	device.DirectFileSystem:     "GPUDirect Storage is not supported on this file system",
	device.DirectDevice:         "GPUDirect Storage is not supported on this device",
	5010:                        "nvidia-fs failed: see dmesg",
	5011:                        "CUDA's driver failed",
	device.DirectPointer:        "not a pointer of the device",
	device.DirectMemoryType:     "not memory of a kind that cuFile takes",
	device.DirectPointerRange:   "beyond the end of an allocation",
	device.DirectContext:        "the memory belongs to another context",
	device.DirectMappingSize:    "more memory than can be pinned: see the GPU's BAR1 size",
	device.DirectMappingRange:   "beyond the end of what is registered",
	5018:                        "not a regular file",
	5019:                        "a flag that the file was opened with is not supported",
	5020:                        "the file was not opened for direct I/O",
	5022:                        "an argument is not valid",
	device.DirectRegistered:     "the buffer is registered already",
	5024:                        "the buffer is not registered",
	5025:                        "the driver or the file may not be accessed",
	driverAlreadyOpen:           "the driver is open already",
	5027:                        "the file is not registered",
	5028:                        "the file is registered already",
	5029:                        "there is no such GPU",
	device.DirectInternal:       "internal error: see cufile.log",
	5031:                        "no file descriptor is left",
	5033:                        "nvidia-fs could not be set up",
	5034:                        "cufile.json switches direct transfers off for this file",
	device.DirectPinning:        "the device's memory could not be pinned",
}

// RegisterBuffer registers device memory with cuFileBufRegister.
func (d *Device) RegisterBuffer(b *device.Buffer) error {
	f, err := d.cuFile()
	if err != nil {
		return err
	}
	return d.file("cuFileBufRegister", func() uint64 { return f.cuFileBufRegister(b.Addr(), uintptr(b.SizeBytes()), 0) })
}

// UnregisterBuffer undoes it.
func (d *Device) UnregisterBuffer(b *device.Buffer) error {
	f, err := d.cuFile()
	if err != nil {
		return err
	}
	return d.file("cuFileBufDeregister", func() uint64 { return f.cuFileBufDeregister(b.Addr()) })
}

// file calls cuFile on a thread that has the device's context.
func (d *Device) file(call string, fn func() uint64) error {
	return d.with(func() error { return status(call, fn()) })
}

// OpenDirect registers a file with cuFileHandleRegister. The device is in use until the file is
// closed.
func (d *Device) OpenDirect(f *os.File) (_ device.DirectFile, err error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.leave()
		}
	}()
	driver, err := d.cuFile()
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
	closed atomic.Bool
}

func (f *directFile) ReadAt(dst device.Place, sizeBytes, fileOffset int64) (int64, error) {
	return f.move("cuFileRead", f.driver.cuFileRead, dst, sizeBytes, fileOffset)
}

func (f *directFile) WriteAt(src device.Place, sizeBytes, fileOffset int64) (int64, error) {
	n, err := f.move("cuFileWrite", f.driver.cuFileWrite, src, sizeBytes, fileOffset)
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
func (f *directFile) once(call string, fn uintptr, base uint64, sizeBytes, fileOffset, offset int64) (n int64, err error) {
	err = f.device.with(func() error {
		r, _, _ := purego.SyscallN(fn, f.handle, uintptr(base), uintptr(sizeBytes), uintptr(fileOffset), uintptr(offset))
		n = int64(r)
		switch {
		case n == -1:
			return fmt.Errorf("cuda: %s: %w", call, syscall.Errno(*f.driver.errnoLocation()))
		case n < 0:
			return &device.DirectError{Call: call, Code: int(-n), Text: codes[int(-n)]}
		}
		return nil
	})
	return max(n, 0), err
}

func (f *directFile) Close() error {
	if f.closed.Swap(true) {
		return errClosed
	}
	defer f.device.leave()
	return f.device.file("cuFileHandleDeregister", func() uint64 {
		f.driver.cuFileHandleDeregister(f.handle)
		return 0
	})
}
