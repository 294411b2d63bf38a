// The part of cuFile that package cuda uses, over hostcuda.c and plain reads and writes: for
// tests on machines without GPUDirect Storage. It is not NVIDIA's library.
//
// A handle must be registered, and a buffer be device memory. Answers can be made to fail
// as cuFile's do, see hostcufile_set.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

typedef CUfileError_t status;
#define SUCCESS CU_FILE_SUCCESS
struct file { int fd, open; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long opened, fail_open, fail_register, fail_buffer, fail_move, fail_errno, most = 1 << 30;
static CUdeviceptr buffers[64];
static long handles;

void hostcufile_set(const char *what, long value) {
	pthread_mutex_lock(&lock);
	if (!strcmp(what, "fail_open")) fail_open = value;
	if (!strcmp(what, "fail_register")) fail_register = value;
	if (!strcmp(what, "fail_buffer")) fail_buffer = value;
	if (!strcmp(what, "fail_move")) fail_move = value;
	if (!strcmp(what, "fail_errno")) fail_errno = value;
	if (!strcmp(what, "most")) most = value;
	pthread_mutex_unlock(&lock);
}

long hostcufile_handles(void) { return handles; }

status cuFileDriverOpen(void) {
	if (fail_open) return (status){(CUfileOpError)fail_open, 0};
	if (opened) return (status){CU_FILE_DRIVER_ALREADY_OPEN, 0};
	opened = 1;
	return (status){SUCCESS, 0};
}

status cuFileHandleRegister(CUfileHandle_t *handle, CUfileDescr_t *d) {
	if (fail_register) return (status){(CUfileOpError)fail_register, 0};
	if (!opened) return (status){CU_FILE_DRIVER_NOT_INITIALIZED, 0};
	if (d->type != CU_FILE_HANDLE_TYPE_OPAQUE_FD || d->fs_ops) return (status){CU_FILE_INVALID_FILE_TYPE, 0};
	struct file *f = malloc(sizeof *f);
	char name[64];
	snprintf(name, sizeof name, "/proc/self/fd/%d", d->handle.fd);
	*f = (struct file){open(name, fcntl(d->handle.fd, F_GETFL) & O_ACCMODE), 1}; // without O_DIRECT: any alignment will do
	if (f->fd < 0) {
		free(f);
		return (status){CU_FILE_INVALID_FILE_TYPE, 0};
	}
	*handle = f;
	handles++;
	return (status){SUCCESS, 0};
}

void cuFileHandleDeregister(CUfileHandle_t handle) {
	close(((struct file *)handle)->fd);
	free(handle);
	handles--;
}

status cuFileBufRegister(const void *mem, size_t size, int flags) {
	CUdeviceptr base = (CUdeviceptr)(uintptr_t)mem;
	if (fail_buffer) return (status){(CUfileOpError)fail_buffer, CUDA_ERROR_INVALID_VALUE}; // with a CUDA error beside it
	if (!hostcuda_host(base, size)) return (status){CU_FILE_INVALID_VALUE, 0};
	for (int i = 0; i < 64; i++)
		if (buffers[i] == base) return (status){CU_FILE_MEMORY_ALREADY_REGISTERED, 0};
	for (int i = 0; i < 64; i++)
		if (!buffers[i]) {
			buffers[i] = base;
			return (status){SUCCESS, 0};
		}
	return (status){CU_FILE_INVALID_VALUE, 0};
}

status cuFileBufDeregister(const void *mem) {
	CUdeviceptr base = (CUdeviceptr)(uintptr_t)mem;
	for (int i = 0; i < 64; i++)
		if (buffers[i] == base) {
			buffers[i] = 0;
			return (status){SUCCESS, 0};
		}
	return (status){CU_FILE_MEMORY_NOT_REGISTERED, 0};
}

static ssize_t move(struct file *f, const void *at_device, size_t size, off_t at, off_t offset, int writes) {
	CUdeviceptr base = (CUdeviceptr)(uintptr_t)at_device;
	if (fail_move) return -fail_move;
	if (fail_errno) {
		errno = (int)fail_errno;
		return -1;
	}
	if (!f || !f->open) return -CU_FILE_HANDLE_NOT_REGISTERED;
	if (size > (size_t)most) size = (size_t)most;
	char *mem = hostcuda_host(base + (CUdeviceptr)offset, size);
	if (!mem) return -CU_FILE_INVALID_VALUE;
	return writes ? pwrite(f->fd, mem, size, at) : pread(f->fd, mem, size, at);
}

ssize_t cuFileRead(CUfileHandle_t f, void *base, size_t size, off_t at, off_t offset) { return move(f, base, size, at, offset, 0); }
ssize_t cuFileWrite(CUfileHandle_t f, const void *base, size_t size, off_t at, off_t offset) { return move(f, base, size, at, offset, 1); }
