// The part of CUDA's driver API that package cuda uses, over host memory: for tests on
// machines without a GPU. It is not NVIDIA's library and computes nothing.
//
// It is stricter than the real one, so that mistakes show: a device pointer is no address
// of the host, a copy happens late and in a thread of its stream, host memory must be
// pinned, a thread must have the context of the device whose memory or stream it uses, and
// memory must not be released while a copy is queued that uses it. There are two devices.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

#define OK CUDA_SUCCESS
#define INVALID_VALUE CUDA_ERROR_INVALID_VALUE
#define OUT_OF_MEMORY CUDA_ERROR_OUT_OF_MEMORY
#define INVALID_DEVICE CUDA_ERROR_INVALID_DEVICE
#define INVALID_CONTEXT CUDA_ERROR_INVALID_CONTEXT
#define ILLEGAL_ADDRESS CUDA_ERROR_ILLEGAL_ADDRESS

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; // of anything
static int initialized;

// Each device's primary context, and each thread's stack of contexts, of which the last is
// current.
enum { DEVICES = 2, DEEP = 8 };
static struct CUctx_st { int retained; } contexts[DEVICES];
static _Thread_local CUcontext stack[DEEP];
static _Thread_local int depth;
static CUcontext current(void) { return depth ? stack[depth - 1] : 0; }

// What tests set, see hostcuda_set.
static long delay_us = 20, hang, fail_copies, lose_copies, fail_next, fail_init, dead;
static long violations; // releases of memory that a copy still uses

enum { DEVICE, ALLOCATED, REGISTERED };
struct range { char *base; size_t size; int kind, used; CUcontext of; struct range *next; };
static struct range *ranges;

#define DEVICE_BIT (1ull << 60)

static struct range *find(const char *at, size_t size, int device) {
	for (struct range *r = ranges; r; r = r->next)
		if ((r->kind == DEVICE) == device && (!device || r->of == current()) && at >= r->base && size <= r->size && (size_t)(at - r->base) <= r->size - size)
			return r;
	return 0;
}

static int add(char *base, size_t size, int kind) {
	struct range *r = malloc(sizeof *r);
	*r = (struct range){base, size, kind, 0, current(), ranges};
	ranges = r;
	return OK;
}

static int drop(char *base, int kind) {
	for (struct range **p = &ranges; *p; p = &(*p)->next) {
		struct range *r = *p;
		if (r->base != base || r->kind != kind) continue;
		if (r->used) violations++;
		*p = r->next;
		if (r->used) return OK; // it stays allocated for the copy
		if (kind != REGISTERED) free(r->base);
		free(r);
		return OK;
	}
	return kind == REGISTERED ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : INVALID_VALUE;
}

struct CUevent_st { unsigned recorded, occurred; int result; };
struct op { void (*what)(struct op *); char *dst, *src; size_t size; struct range *from, *to; struct CUevent_st *event; unsigned n; struct CUstream_st *stream; struct op *next; };
struct CUstream_st { pthread_t thread; struct op *first, **last; int closed, result; CUcontext of; };

static void *work(void *arg) {
	struct CUstream_st *s = arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!s->first && !s->closed) pthread_cond_wait(&changed, &lock);
		struct op *o = s->first;
		if (!o) break;
		o->what(o); // with the lock held
		s->first = o->next;
		if (!s->first) s->last = &s->first;
		free(o);
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	free(s);
	return 0;
}

static void do_copy(struct op *o) {
	while (hang) pthread_cond_wait(&changed, &lock);
	long us = delay_us;
	int fails = fail_copies > 0 && fail_copies--, loses = lose_copies > 0 && lose_copies--;
	pthread_mutex_unlock(&lock);
	if (us > 0) usleep(us / 2 + (useconds_t)((uintptr_t)o >> 4) % (useconds_t)us); // streams overtake each other
	if (!fails && !loses) memcpy(o->dst, o->src, o->size);
	pthread_mutex_lock(&lock);
	if (fails) o->stream->result = ILLEGAL_ADDRESS;
	o->from->used--;
	o->to->used--;
}

static void do_record(struct op *o) {
	o->event->occurred = o->n;
	o->event->result = o->stream->result;
	o->stream->result = OK;
}

static void do_wait(struct op *o) {
	while ((int)(o->event->occurred - o->n) < 0) pthread_cond_wait(&changed, &lock);
}

// queue queues a copy of *o. The lock is held.
static int queue(struct CUstream_st *s, struct op o) {
	struct op *copy = malloc(sizeof *copy);
	*copy = o;
	copy->stream = s;
	copy->next = 0;
	*s->last = copy;
	s->last = &copy->next;
	pthread_cond_broadcast(&changed);
	return OK;
}

static int enter(void) {
	pthread_mutex_lock(&lock);
	if (dead) return ILLEGAL_ADDRESS;
	if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
	if (fail_next) {
		int e = (int)fail_next;
		fail_next = 0;
		return e;
	}
	return current() && current()->retained > 0 ? OK : INVALID_CONTEXT;
}

static int leave(int result) {
	pthread_mutex_unlock(&lock);
	return result;
}

#define ENTER do { int e = enter(); if (e) return leave(e); } while (0)

void hostcuda_set(const char *what, long value) {
	pthread_mutex_lock(&lock);
	if (!strcmp(what, "delay_us")) delay_us = value;
	if (!strcmp(what, "hang")) hang = value;
	if (!strcmp(what, "fail_copies")) fail_copies = value;
	if (!strcmp(what, "lose_copies")) lose_copies = value;
	if (!strcmp(what, "fail_next")) fail_next = value;
	if (!strcmp(what, "fail_init")) fail_init = value;
	if (!strcmp(what, "dead")) dead = value;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

long hostcuda_get(const char *what) {
	pthread_mutex_lock(&lock);
	long n = -1;
	if (!strcmp(what, "violations")) n = violations;
	if (!strcmp(what, "depth")) n = depth;
	if (!strcmp(what, "ranges")) {
		n = 0;
		for (struct range *r = ranges; r; r = r->next) n++;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

char *hostcuda_host(CUdeviceptr at, size_t size) {
	pthread_mutex_lock(&lock);
	char *host = (char *)(uintptr_t)(at & ~DEVICE_BIT);
	if (!(at & DEVICE_BIT) || !find(host, size, 1)) host = 0;
	pthread_mutex_unlock(&lock);
	return host;
}

CUresult cuInit(unsigned flags) {
	pthread_mutex_lock(&lock);
	initialized = 1;
	return leave(fail_init ? (int)fail_init : flags ? INVALID_VALUE : OK);
}

static int is_device(CUdevice device) { return device >= 0 && device < DEVICES; }

CUresult cuDeviceGetCount(int *count) { *count = DEVICES; return initialized ? OK : CUDA_ERROR_NOT_INITIALIZED; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return is_device(ordinal) ? OK : INVALID_DEVICE; }
CUresult cuDeviceGetName(char *name, int size, CUdevice device) { strncpy(name, "host memory, no GPU", size); return is_device(device) ? OK : INVALID_DEVICE; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
	if (!is_device(device)) return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	*context = &contexts[device];
	contexts[device].retained++;
	return leave(OK);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
	if (!is_device(device)) return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	return leave(contexts[device].retained-- > 0 ? OK : INVALID_CONTEXT);
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
	if (dead) return ILLEGAL_ADDRESS;
	if (!context || depth == DEEP) return INVALID_CONTEXT;
	stack[depth++] = context;
	return OK;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
	if (!depth) return INVALID_CONTEXT;
	*context = stack[--depth];
	return dead ? ILLEGAL_ADDRESS : OK; // of an earlier copy
}

CUresult cuCtxGetCurrent(CUcontext *context) {
	*context = current();
	return OK;
}

CUresult cuCtxSetCurrent(CUcontext context) {
	if (depth) depth--;
	return context ? cuCtxPushCurrent_v2(context) : OK;
}

CUresult cuGetErrorName(CUresult result, const char **name) {
	switch ((int)result) {
	case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return OK;
	case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
	case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return OK;
	case CUDA_ERROR_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; return OK;
	case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return OK;
	case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"; return OK;
	}
	*name = 0;
	return INVALID_VALUE;
}

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t size) {
	ENTER;
	char *base = size && size < 1ull << 40 ? malloc(size) : 0;
	if (!base) return leave(OUT_OF_MEMORY);
	memset(base, 0xde, size < 1 << 26 ? size : 1 << 26);
	*at = (CUdeviceptr)(uintptr_t)base | DEVICE_BIT;
	return leave(add(base, size, DEVICE));
}

CUresult cuMemFree_v2(CUdeviceptr at) { ENTER; return leave(drop((char *)(uintptr_t)(at & ~DEVICE_BIT), DEVICE)); }

CUresult cuMemHostAlloc(void **mem, size_t size, unsigned flags) {
	ENTER;
	char *base = size && size < 1ull << 40 ? malloc(size) : 0;
	if (!base) return leave(OUT_OF_MEMORY);
	*mem = base;
	return leave(add(base, size, ALLOCATED));
}

CUresult cuMemFreeHost(void *mem) { ENTER; return leave(drop(mem, ALLOCATED)); }

CUresult cuMemHostRegister_v2(void *mem, size_t size, unsigned flags) {
	ENTER;
	if (!size) return leave(INVALID_VALUE);
	for (struct range *r = ranges; r; r = r->next)
		if (r->kind != DEVICE && r->base < (char *)mem + size && (char *)mem < r->base + r->size) return leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	return leave(add(mem, size, REGISTERED));
}

CUresult cuMemHostUnregister(void *mem) { ENTER; return leave(drop(mem, REGISTERED)); }

// copy queues a copy.
static int copy(CUdeviceptr at, char *host, size_t size, struct CUstream_st *s, int to_device) {
	ENTER;
	char *device = (char *)(uintptr_t)(at & ~DEVICE_BIT);
	struct range *d = at & DEVICE_BIT ? find(device, size, 1) : 0, *h = find(host, size, 0);
	if (!d || !h) return leave(INVALID_VALUE);
	if (s->of != current()) return leave(CUDA_ERROR_INVALID_HANDLE);
	char *dst = to_device ? device : host, *src = to_device ? host : device;
	d->used++;
	h->used++;
	return leave(queue(s, (struct op){.what = do_copy, .dst = dst, .src = src, .size = size, .from = d, .to = h}));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t size, struct CUstream_st *s) { return copy(dst, (char *)src, size, s, 1); }
CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, struct CUstream_st *s) { return copy(src, dst, size, s, 0); }

CUresult cuStreamCreate(struct CUstream_st **out, unsigned flags) {
	ENTER;
	struct CUstream_st *s = calloc(1, sizeof *s);
	s->last = &s->first;
	s->of = current();
	if (pthread_create(&s->thread, 0, work, s)) return leave(OUT_OF_MEMORY);
	pthread_detach(s->thread);
	*out = s;
	return leave(OK);
}

CUresult cuStreamDestroy_v2(struct CUstream_st *s) {
	ENTER;
	s->closed = 1;
	pthread_cond_broadcast(&changed);
	return leave(OK);
}

CUresult cuStreamWaitEvent(struct CUstream_st *s, struct CUevent_st *e, unsigned flags) {
	ENTER;
	return leave(queue(s, (struct op){.what = do_wait, .event = e, .n = e->recorded}));
}

CUresult cuEventCreate(struct CUevent_st **out, unsigned flags) { ENTER; *out = calloc(1, sizeof **out); return leave(OK); }

CUresult cuEventRecord(struct CUevent_st *e, struct CUstream_st *s) {
	ENTER;
	return leave(queue(s, (struct op){.what = do_record, .event = e, .n = ++e->recorded}));
}

CUresult cuEventSynchronize(struct CUevent_st *e) {
	ENTER;
	unsigned n = e->recorded;
	while ((int)(e->occurred - n) < 0 && !dead) pthread_cond_wait(&changed, &lock);
	return leave(dead ? ILLEGAL_ADDRESS : e->result);
}

CUresult cuEventDestroy_v2(struct CUevent_st *e) {
	ENTER;
	if (e->occurred == e->recorded) free(e); // else a stream still has it
	return leave(OK);
}
