// The binary interface of the part of CUDA's driver API and of cuFile that package cuda calls,
// as cuda.h (CUDA 12 and 13) and cufile.h (1.13) of NVIDIA's toolkit declare it, checked against
// what cuda-python's cydriver.pxd and cycufile.pxd say of them. hostcuda.c and hostcufile.c
// implement it, and abi_test.go holds the package's Go types against it.
//
// With KV3FS_TOOLKIT the types are those of NVIDIA's own headers, so that a compiler compares
// its prototypes with these.
//
// A function's name is that of its symbol, with the version that the header maps the plain name
// to. One prototype a line, for abi_test.go.
#ifndef KV3FS_ABI_H
#define KV3FS_ABI_H

#ifdef KV3FS_TOOLKIT
#include <cuda.h>
#include <cufile.h>
#else
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3, CUDA_ERROR_NO_DEVICE = 100, CUDA_ERROR_INVALID_DEVICE = 101, CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_INVALID_HANDLE = 400, CUDA_ERROR_ILLEGAL_ADDRESS = 700, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713 } CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

#define CU_MEMHOSTALLOC_PORTABLE 1
#define CU_MEMHOSTREGISTER_PORTABLE 1
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };

typedef enum CUfileOpError { CU_FILE_SUCCESS = 0, CU_FILE_DRIVER_NOT_INITIALIZED = 5001, CU_FILE_PLATFORM_NOT_SUPPORTED = 5007,
	CU_FILE_IO_NOT_SUPPORTED = 5008, CU_FILE_DEVICE_NOT_SUPPORTED = 5009, CU_FILE_INVALID_FILE_TYPE = 5018,
	CU_FILE_INVALID_VALUE = 5022, CU_FILE_MEMORY_ALREADY_REGISTERED = 5023, CU_FILE_MEMORY_NOT_REGISTERED = 5024,
	CU_FILE_DRIVER_ALREADY_OPEN = 5026, CU_FILE_HANDLE_NOT_REGISTERED = 5027, CU_FILE_INTERNAL_ERROR = 5030 } CUfileOpError;
typedef struct CUfileError { CUfileOpError err; CUresult cu_err; } CUfileError_t;
enum CUfileFileHandleType { CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1 };
typedef struct CUfileFSOps CUfileFSOps_t;
typedef struct CUfileDescr_t {
	enum CUfileFileHandleType type;
	union {
		int fd;
		void *handle;
	} handle;
	const CUfileFSOps_t *fs_ops;
} CUfileDescr_t;
typedef void *CUfileHandle_t;
#endif

CUresult cuInit(unsigned int flags);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetName(char *name, int size, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemHostAlloc(void **mem, size_t size, unsigned int flags);
CUresult cuMemFreeHost(void *mem);
CUresult cuMemHostRegister_v2(void *mem, size_t size, unsigned int flags);
CUresult cuMemHostUnregister(void *mem);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t size, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream stream);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuGetErrorName(CUresult result, const char **name);

CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileHandleRegister(CUfileHandle_t *handle, CUfileDescr_t *descr);
void cuFileHandleDeregister(CUfileHandle_t handle);
CUfileError_t cuFileBufRegister(const void *base, size_t size, int flags);
CUfileError_t cuFileBufDeregister(const void *base);
ssize_t cuFileRead(CUfileHandle_t handle, void *base, size_t size, off_t file_offset, off_t offset);
ssize_t cuFileWrite(CUfileHandle_t handle, const void *base, size_t size, off_t file_offset, off_t offset);

#endif
