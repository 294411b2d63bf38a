// The part of cuFile that package cuda uses, over hostcuda.c and plain reads and writes: for
// tests on machines without GPUDirect Storage. It is not NVIDIA's library.
//
// A handle must be registered, and a buffer be device memory. Answers can be made to fail
// as cuFile's do, see hostcufile_set.
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, DRIVER_NOT_INITIALIZED = 5001, INVALID_FILE_TYPE = 5018, INVALID_VALUE = 5022,
	ALREADY_REGISTERED = 5023, NOT_REGISTERED = 5024, HANDLE_NOT_REGISTERED = 5027 };

typedef struct { int err, cu_err; } status;
typedef struct { int type; union { int fd; void *handle; } handle; const void *ops; } descr;
struct file { int fd, open; };

char *hostcuda_host(uint64_t at, size_t size);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long drivers, fail_open, fail_register, fail_buffer, fail_move, fail_errno, most = 1 << 30;
static uint64_t buffers[64];
static long handles;

// hostcufile_set sets what goes wrong, by name: the number that a call fails with, or the
// most that one call moves.
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

status cuFileDriverOpen(void) { if (!fail_open) drivers++; return (status){(int)fail_open, 0}; }
status cuFileDriverClose_v2(void) { return (status){drivers-- > 0 ? SUCCESS : DRIVER_NOT_INITIALIZED, 0}; }

status cuFileHandleRegister(void **handle, descr *d) {
	if (fail_register) return (status){(int)fail_register, 0};
	if (drivers < 1) return (status){DRIVER_NOT_INITIALIZED, 0};
	if (d->type != 1 || d->ops) return (status){INVALID_FILE_TYPE, 0};
	struct file *f = malloc(sizeof *f);
	*f = (struct file){d->handle.fd, 1};
	*handle = f;
	handles++;
	return (status){SUCCESS, 0};
}

void cuFileHandleDeregister(void *handle) {
	free(handle);
	handles--;
}

status cuFileBufRegister(uint64_t base, size_t size, int flags) {
	if (fail_buffer) return (status){(int)fail_buffer, 1}; // with a CUDA error beside it
	if (!hostcuda_host(base, size)) return (status){INVALID_VALUE, 0};
	for (int i = 0; i < 64; i++)
		if (buffers[i] == base) return (status){ALREADY_REGISTERED, 0};
	for (int i = 0; i < 64; i++)
		if (!buffers[i]) {
			buffers[i] = base;
			return (status){SUCCESS, 0};
		}
	return (status){INVALID_VALUE, 0};
}

status cuFileBufDeregister(uint64_t base) {
	for (int i = 0; i < 64; i++)
		if (buffers[i] == base) {
			buffers[i] = 0;
			return (status){SUCCESS, 0};
		}
	return (status){NOT_REGISTERED, 0};
}

static ssize_t move(struct file *f, uint64_t base, size_t size, off_t at, off_t offset, int writes) {
	if (fail_move) return -fail_move;
	if (fail_errno) {
		errno = (int)fail_errno;
		return -1;
	}
	if (!f || !f->open) return -HANDLE_NOT_REGISTERED;
	if (size > (size_t)most) size = (size_t)most;
	char *mem = hostcuda_host(base + (uint64_t)offset, size);
	if (!mem) return -INVALID_VALUE;
	return writes ? pwrite(f->fd, mem, size, at) : pread(f->fd, mem, size, at);
}

ssize_t cuFileRead(void *f, uint64_t base, size_t size, off_t at, off_t offset) { return move(f, base, size, at, offset, 0); }
ssize_t cuFileWrite(void *f, uint64_t base, size_t size, off_t at, off_t offset) { return move(f, base, size, at, offset, 1); }
