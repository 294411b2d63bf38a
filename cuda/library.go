package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// driver is the part of CUDA's driver API that is used. The names are those of the symbols,
// with the versions that cuda.h maps its names to. Results are CUresult. testdata/abi.h has
// their C types.
type driver struct {
	cuInit                       func(flags uint32) int32
	cuDeviceGetCount             func(count *int32) int32
	cuDeviceGet                  func(device *int32, ordinal int32) int32
	cuDeviceGetName              func(name *byte, size, device int32) int32
	cuDevicePrimaryCtxRetain     func(context *uintptr, device int32) int32
	cuDevicePrimaryCtxRelease_v2 func(device int32) int32
	cuCtxPushCurrent_v2          func(context uintptr) int32
	cuCtxPopCurrent_v2           func(context *uintptr) int32
	cuMemAlloc_v2                func(address *uint64, size uintptr) int32
	cuMemFree_v2                 func(address uint64) int32
	cuMemHostAlloc               func(mem *unsafe.Pointer, size uintptr, flags uint32) int32
	cuMemFreeHost                func(mem unsafe.Pointer) int32
	cuMemHostRegister_v2         func(mem unsafe.Pointer, size uintptr, flags uint32) int32
	cuMemHostUnregister          func(mem unsafe.Pointer) int32
	cuMemcpyHtoDAsync_v2         func(dst uint64, src unsafe.Pointer, size, stream uintptr) int32
	cuMemcpyDtoHAsync_v2         func(dst unsafe.Pointer, src uint64, size, stream uintptr) int32
	cuStreamCreate               func(stream *uintptr, flags uint32) int32
	cuStreamDestroy_v2           func(stream uintptr) int32
	cuStreamWaitEvent            func(stream, event uintptr, flags uint32) int32
	cuEventCreate                func(event *uintptr, flags uint32) int32
	cuEventRecord                func(event, stream uintptr) int32
	cuEventSynchronize           func(event uintptr) int32
	cuEventDestroy_v2            func(event uintptr) int32
	cuGetErrorName               func(result int32, name *unsafe.Pointer) int32
}

// Flags, from cuda.h.
const (
	memHostAllocPortable    = 1 // CU_MEMHOSTALLOC_PORTABLE
	memHostRegisterPortable = 1 // CU_MEMHOSTREGISTER_PORTABLE
	streamNonBlocking       = 1 // CU_STREAM_NON_BLOCKING
	eventBlockingSync       = 1 // CU_EVENT_BLOCKING_SYNC
	eventDisableTiming      = 2 // CU_EVENT_DISABLE_TIMING
)

func loadDriver(path string) (*driver, error) {
	lib, err := load(path)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w; install the NVIDIA driver, or in a container its libraries", err)
	}
	d := &driver{}
	return d, lib.bind(map[string]any{
		"cuInit":                       &d.cuInit,
		"cuDeviceGetCount":             &d.cuDeviceGetCount,
		"cuDeviceGet":                  &d.cuDeviceGet,
		"cuDeviceGetName":              &d.cuDeviceGetName,
		"cuDevicePrimaryCtxRetain":     &d.cuDevicePrimaryCtxRetain,
		"cuDevicePrimaryCtxRelease_v2": &d.cuDevicePrimaryCtxRelease_v2,
		"cuCtxPushCurrent_v2":          &d.cuCtxPushCurrent_v2,
		"cuCtxPopCurrent_v2":           &d.cuCtxPopCurrent_v2,
		"cuMemAlloc_v2":                &d.cuMemAlloc_v2,
		"cuMemFree_v2":                 &d.cuMemFree_v2,
		"cuMemHostAlloc":               &d.cuMemHostAlloc,
		"cuMemFreeHost":                &d.cuMemFreeHost,
		"cuMemHostRegister_v2":         &d.cuMemHostRegister_v2,
		"cuMemHostUnregister":          &d.cuMemHostUnregister,
		"cuMemcpyHtoDAsync_v2":         &d.cuMemcpyHtoDAsync_v2,
		"cuMemcpyDtoHAsync_v2":         &d.cuMemcpyDtoHAsync_v2,
		"cuStreamCreate":               &d.cuStreamCreate,
		"cuStreamDestroy_v2":           &d.cuStreamDestroy_v2,
		"cuStreamWaitEvent":            &d.cuStreamWaitEvent,
		"cuEventCreate":                &d.cuEventCreate,
		"cuEventRecord":                &d.cuEventRecord,
		"cuEventSynchronize":           &d.cuEventSynchronize,
		"cuEventDestroy_v2":            &d.cuEventDestroy_v2,
		"cuGetErrorName":               &d.cuGetErrorName,
	})
}

// fileDriver is the part of cuFile that is used. cuFile returns a CUfileError_t by value:
// two 32-bit numbers, which a register holds together.
type fileDriver struct {
	cuFileDriverOpen       func() uint64
	cuFileHandleRegister   func(handle *uintptr, descr unsafe.Pointer) uint64
	cuFileHandleDeregister func(handle uintptr)
	cuFileBufRegister      func(base uint64, size uintptr, flags int32) uint64
	cuFileBufDeregister    func(base uint64) uint64

	cuFileRead, cuFileWrite uintptr       // called together with what errno is then
	errnoLocation           func() *int32 // the C library's: of the calling thread
}

func loadFileDriver(path string) (*fileDriver, error) {
	lib, err := load(path)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w; install GPUDirect Storage (libcufile), or do without direct transfers", err)
	}
	f := &fileDriver{}
	err = lib.bind(map[string]any{
		"cuFileDriverOpen":       &f.cuFileDriverOpen,
		"cuFileHandleRegister":   &f.cuFileHandleRegister,
		"cuFileHandleDeregister": &f.cuFileHandleDeregister,
		"cuFileBufRegister":      &f.cuFileBufRegister,
		"cuFileBufDeregister":    &f.cuFileBufDeregister,
		"__errno_location":       &f.errnoLocation, // libcufile needs the C library
	})
	for name, at := range map[string]*uintptr{"cuFileRead": &f.cuFileRead, "cuFileWrite": &f.cuFileWrite} {
		symbol, e := purego.Dlsym(uintptr(lib), name)
		*at = symbol
		err = errors.Join(err, e)
	}
	return f, err
}

// library is a handle of dlopen. Libraries stay loaded: CUDA's has threads.
type library uintptr

func load(path string) (library, error) {
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, fmt.Errorf("load %s: %w", path, err)
	}
	return library(lib), nil
}

// bind sets functions to the symbols of their names.
func (lib library) bind(functions map[string]any) error {
	var errs []error
	for name, fn := range functions {
		symbol, err := purego.Dlsym(uintptr(lib), name)
		if err != nil {
			errs = append(errs, fmt.Errorf("cuda: the library has no %s, so it is too old: %w", name, err))
			continue
		}
		purego.RegisterFunc(fn, symbol)
	}
	return errors.Join(errs...)
}

// text reads a C string that the library owns.
func text(p unsafe.Pointer) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}
