// The part of CUDA's driver API that package cuda uses, over host memory: for tests on
// machines without a GPU. It is not NVIDIA's library and computes nothing.
//
// It is stricter than the real one, so that mistakes show: a device pointer is no address
// of the host, a copy happens late and in a thread of its stream, host memory must be
// pinned, a thread must have the context, and memory must not be released while a copy is
// queued that uses it.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201, INVALID_HANDLE = 400, ILLEGAL_ADDRESS = 700, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; // of anything
static int initialized, retained;
static _Thread_local uintptr_t current;
#define CONTEXT 0xc0de

// What tests set, see hostcuda_set.
static long delay_us = 20, hang, fail_copies, dead;
static long violations; // releases of memory that a copy still uses

enum { DEVICE, ALLOCATED, REGISTERED };
struct range { char *base; size_t size; int kind, used; struct range *next; };
static struct range *ranges;

#define DEVICE_BIT (1ull << 60)
static uint64_t pointer_of(struct range *r) { return (uint64_t)(uintptr_t)r->base | DEVICE_BIT; }

static struct range *find(const char *at, size_t size, int device) {
	for (struct range *r = ranges; r; r = r->next)
		if ((r->kind == DEVICE) == device && at >= r->base && size <= r->size && (size_t)(at - r->base) <= r->size - size)
			return r;
	return 0;
}

static int add(char *base, size_t size, int kind) {
	struct range *r = malloc(sizeof *r);
	*r = (struct range){base, size, kind, 0, ranges};
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
	return kind == REGISTERED ? NOT_REGISTERED : INVALID_VALUE;
}

struct event { unsigned recorded, occurred; int result; };
struct op { void (*what)(struct op *); char *dst, *src; size_t size; struct range *from, *to; struct event *event; unsigned n; struct stream *stream; struct op *next; };
struct stream { pthread_t thread; struct op *first, **last; int closed, result; };

static void *work(void *arg) {
	struct stream *s = arg;
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
	int fails = fail_copies > 0 && fail_copies--;
	pthread_mutex_unlock(&lock);
	if (us > 0) usleep(us / 2 + (useconds_t)((uintptr_t)o >> 4) % (useconds_t)us); // streams overtake each other
	if (!fails) memcpy(o->dst, o->src, o->size);
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
static int queue(struct stream *s, struct op o) {
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
	if (!initialized) return NOT_INITIALIZED;
	return current == CONTEXT && retained > 0 ? OK : INVALID_CONTEXT;
}

static int leave(int result) {
	pthread_mutex_unlock(&lock);
	return result;
}

#define ENTER do { int e = enter(); if (e) return leave(e); } while (0)

// hostcuda_set sets what goes wrong, by name: delay_us, hang, fail_copies (how many), dead.
void hostcuda_set(const char *what, long value) {
	pthread_mutex_lock(&lock);
	if (!strcmp(what, "delay_us")) delay_us = value;
	if (!strcmp(what, "hang")) hang = value;
	if (!strcmp(what, "fail_copies")) fail_copies = value;
	if (!strcmp(what, "dead")) dead = value;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

// hostcuda_get returns how much of something there is: violations, ranges.
long hostcuda_get(const char *what) {
	pthread_mutex_lock(&lock);
	long n = -1;
	if (!strcmp(what, "violations")) n = violations;
	if (!strcmp(what, "ranges")) {
		n = 0;
		for (struct range *r = ranges; r; r = r->next) n++;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

// hostcuda_host returns the host memory that stands for device memory, for hostcufile.c.
char *hostcuda_host(uint64_t at, size_t size) {
	pthread_mutex_lock(&lock);
	char *host = (char *)(uintptr_t)(at & ~DEVICE_BIT);
	if (!(at & DEVICE_BIT) || !find(host, size, 1)) host = 0;
	pthread_mutex_unlock(&lock);
	return host;
}

int cuInit(unsigned flags) {
	pthread_mutex_lock(&lock);
	initialized = 1;
	return leave(flags ? INVALID_VALUE : OK);
}

int cuDeviceGetCount(int *count) { *count = 1; return initialized ? OK : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int ordinal) { *device = 0; return ordinal ? INVALID_DEVICE : OK; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "host memory, no GPU", size); return device ? INVALID_DEVICE : OK; }
int cuDevicePrimaryCtxRetain(uintptr_t *context, int device) { pthread_mutex_lock(&lock); *context = CONTEXT; retained++; return leave(device ? INVALID_DEVICE : OK); }
int cuDevicePrimaryCtxRelease_v2(int device) { pthread_mutex_lock(&lock); return leave(device || retained-- <= 0 ? INVALID_CONTEXT : OK); }
int cuCtxSetCurrent(uintptr_t context) { current = context; return dead ? ILLEGAL_ADDRESS : OK; }

int cuGetErrorName(int result, const char **name) {
	switch (result) {
	case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return OK;
	case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
	case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return OK;
	case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return OK;
	case NOT_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"; return OK;
	}
	*name = 0;
	return INVALID_VALUE;
}

int cuMemAlloc_v2(uint64_t *at, size_t size) {
	ENTER;
	char *base = size && size < 1ull << 40 ? malloc(size) : 0;
	if (!base) return leave(OUT_OF_MEMORY);
	memset(base, 0xde, size);
	*at = (uint64_t)(uintptr_t)base | DEVICE_BIT;
	return leave(add(base, size, DEVICE));
}

int cuMemFree_v2(uint64_t at) { ENTER; return leave(drop((char *)(uintptr_t)(at & ~DEVICE_BIT), DEVICE)); }

int cuMemHostAlloc(void **mem, size_t size, unsigned flags) {
	ENTER;
	char *base = size && size < 1ull << 40 ? malloc(size) : 0;
	if (!base) return leave(OUT_OF_MEMORY);
	*mem = base;
	return leave(add(base, size, ALLOCATED));
}

int cuMemFreeHost(void *mem) { ENTER; return leave(drop(mem, ALLOCATED)); }

int cuMemHostRegister_v2(void *mem, size_t size, unsigned flags) {
	ENTER;
	if (!size) return leave(INVALID_VALUE);
	for (struct range *r = ranges; r; r = r->next)
		if (r->kind != DEVICE && r->base < (char *)mem + size && (char *)mem < r->base + r->size) return leave(ALREADY_REGISTERED);
	return leave(add(mem, size, REGISTERED));
}

int cuMemHostUnregister(void *mem) { ENTER; return leave(drop(mem, REGISTERED)); }

// copy queues a copy, or makes it at once without a stream.
static int copy(uint64_t at, char *host, size_t size, struct stream *s, int to_device) {
	ENTER;
	char *device = (char *)(uintptr_t)(at & ~DEVICE_BIT);
	struct range *d = at & DEVICE_BIT ? find(device, size, 1) : 0, *h = find(host, size, 0);
	if (!d || s && !h) return leave(INVALID_VALUE);
	char *dst = to_device ? device : host, *src = to_device ? host : device;
	if (!s) {
		memcpy(dst, src, size);
		return leave(OK);
	}
	d->used++;
	h->used++;
	return leave(queue(s, (struct op){.what = do_copy, .dst = dst, .src = src, .size = size, .from = d, .to = h}));
}

int cuMemcpyHtoD_v2(uint64_t dst, const void *src, size_t size) { return copy(dst, (char *)src, size, 0, 1); }
int cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t size) { return copy(src, dst, size, 0, 0); }
int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t size, struct stream *s) { return copy(dst, (char *)src, size, s, 1); }
int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t size, struct stream *s) { return copy(src, dst, size, s, 0); }

int cuStreamCreate(struct stream **out, unsigned flags) {
	ENTER;
	struct stream *s = calloc(1, sizeof *s);
	s->last = &s->first;
	if (pthread_create(&s->thread, 0, work, s)) return leave(OUT_OF_MEMORY);
	pthread_detach(s->thread);
	*out = s;
	return leave(OK);
}

int cuStreamDestroy_v2(struct stream *s) {
	ENTER;
	s->closed = 1;
	pthread_cond_broadcast(&changed);
	return leave(OK);
}

int cuStreamWaitEvent(struct stream *s, struct event *e, unsigned flags) {
	ENTER;
	return leave(queue(s, (struct op){.what = do_wait, .event = e, .n = e->recorded}));
}

int cuEventCreate(struct event **out, unsigned flags) { ENTER; *out = calloc(1, sizeof **out); return leave(OK); }

int cuEventRecord(struct event *e, struct stream *s) {
	ENTER;
	return leave(queue(s, (struct op){.what = do_record, .event = e, .n = ++e->recorded}));
}

int cuEventSynchronize(struct event *e) {
	ENTER;
	unsigned n = e->recorded;
	while ((int)(e->occurred - n) < 0 && !dead) pthread_cond_wait(&changed, &lock);
	return leave(dead ? ILLEGAL_ADDRESS : e->result);
}

int cuEventDestroy_v2(struct event *e) {
	ENTER;
	if (e->occurred == e->recorded) free(e); // else a stream still has it
	return leave(OK);
}
