/* SPDX-License-Identifier: Apache-2.0 */

/*
 * usrbio_bench reads one file through one ring. The Python client's benchmark compares Python with it;
 * it does the same as ringloop.py there, request by request.
 *
 *   usrbio_bench MOUNT FILE SHM SIZE DEPTH OFFSETS
 *
 * SHM is a name in /dev/shm with room for DEPTH requests of SIZE bytes, OFFSETS a file of native
 * 64-bit numbers: where in FILE the requests begin, taken in turn and again from the start. Commands
 * are lines on stdin, answers lines on stdout:
 *
 *   rate SECONDS     keeps DEPTH requests in flight -> REQUESTS SECONDS
 *   cost BATCHES     DEPTH requests at a time, all complete before they are collected
 *                    -> PREPARE REAP, nanoseconds for one request, medians of the batches
 *
 * followed by the offset in FILE that each slot of the memory holds after it.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"

/* After this time without a completion the daemon counts as hung. */
#define PATIENCE_SECONDS 30

/* Long enough for the daemon to complete a batch that no thread waits for. */
#define BATCH_PAUSE_NS 2000000

static struct hf3fs_iov iov;
static struct hf3fs_ior ior;
static char link_name[512];
static int fd;
static size_t size, depth;
static uint64_t *offsets;
static size_t offset_count, next_offset;
static uint64_t *held; /* the last requested offset, by slot */
static struct hf3fs_cqe *cqes;

static void die(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("usrbio_bench: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  if (link_name[0]) unlink(link_name);
  exit(1);
}

static double seconds_now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Registers the memory as Python's make_iovec does: a link with a new id and no block size. */
static void wrap(const char *mount, const char *shm) {
  int shm_fd = shm_open(shm, O_RDWR, 0);
  if (shm_fd < 0) die("%s: %s", shm, strerror(errno));
  void *base = mmap(NULL, size * depth, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, shm_fd, 0);
  if (base == MAP_FAILED) die("mmap: %s", strerror(errno));
  close(shm_fd);
  uint8_t id[16];
  if (getrandom(id, sizeof id, 0) != sizeof id) die("getrandom: %s", strerror(errno));
  int n = snprintf(link_name, sizeof link_name, "%s/3fs-virt/iovs/", mount);
  for (size_t i = 0; i < sizeof id; i++) {
    const char *hyphen = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
    n += snprintf(link_name + n, sizeof link_name - (size_t)n, "%s%02x", hyphen, id[i]);
  }
  char target[256];
  snprintf(target, sizeof target, "/dev/shm/%s", shm);
  if (symlink(target, link_name) != 0) die("%s: %s", link_name, strerror(errno));
  int err = hf3fs_iovwrap(&iov, base, id, mount, size * depth, 0, -1);
  if (err < 0) die("iovwrap: %s", strerror(-err));
}

static void read_offsets(const char *path) {
  FILE *f = fopen(path, "rb");
  struct stat st;
  if (!f || fstat(fileno(f), &st) != 0) die("%s: %s", path, strerror(errno));
  offset_count = (size_t)st.st_size / sizeof *offsets;
  offsets = malloc((size_t)st.st_size);
  if (offset_count == 0 || !offsets || fread(offsets, sizeof *offsets, offset_count, f) != offset_count)
    die("%s: no offsets", path);
  fclose(f);
}

static void prepare(size_t slot) {
  uint64_t off = offsets[next_offset];
  next_offset = next_offset + 1 < offset_count ? next_offset + 1 : 0;
  held[slot] = off;
  int index = hf3fs_prep_io(&ior, &iov, true, iov.base + slot * size, fd, off, size, (void *)slot);
  if (index < 0) die("prep_io: %s", strerror(-index));
}

static void submit(void) {
  int err = hf3fs_submit_ios(&ior);
  if (err < 0) die("submit_ios: %s", strerror(-err));
}

/* Collects at least this many completions, which must be good. */
static size_t wait_for(size_t at_least) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += PATIENCE_SECONDS;
  int n = hf3fs_wait_for_ios(&ior, cqes, (int)depth, (int)at_least, &until);
  if (n < (int)at_least) die("wait_for_ios: %s", n < 0 ? strerror(-n) : "the daemon hangs");
  for (int i = 0; i < n; i++)
    if (cqes[i].result != (int64_t)size) die("a request of %zu bytes: result %lld", size, (long long)cqes[i].result);
  return (size_t)n;
}

/* Half of the requests are collected at a time, so that the daemon can work on the other half. */
static void rate(double seconds) {
  size_t requests = 0, pending = depth;
  double began = seconds_now(CLOCK_MONOTONIC), end = began + seconds, now = began;
  for (size_t slot = 0; slot < depth; slot++) prepare(slot);
  submit();
  while (pending > 0) {
    size_t n = wait_for((pending + 1) / 2);
    requests += n;
    now = seconds_now(CLOCK_MONOTONIC);
    if (now >= end) {
      pending -= n;
      continue;
    }
    for (size_t i = 0; i < n; i++) prepare((size_t)cqes[i].userdata);
    submit();
  }
  printf("%zu %.9f", requests, now - began);
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
  qsort(values, n, sizeof *values, by_value);
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void cost(size_t batches) {
  double *prepares = calloc(batches, sizeof *prepares), *reaps = calloc(batches, sizeof *reaps);
  if (!prepares || !reaps) die("no memory");
  for (size_t batch = 0; batch < batches; batch++) {
    double began = seconds_now(CLOCK_MONOTONIC);
    for (size_t slot = 0; slot < depth; slot++) prepare(slot);
    prepares[batch] = (seconds_now(CLOCK_MONOTONIC) - began) * 1e9 / (double)depth;
    submit();
    /* Only a wait could tell when all are complete, but the figure must not include waiting. */
    nanosleep(&(struct timespec){.tv_nsec = BATCH_PAUSE_NS}, NULL);
    began = seconds_now(CLOCK_MONOTONIC);
    wait_for(depth);
    reaps[batch] = (seconds_now(CLOCK_MONOTONIC) - began) * 1e9 / (double)depth;
  }
  printf("%.1f %.1f", median(prepares, batches), median(reaps, batches));
  free(prepares);
  free(reaps);
}

int main(int argc, char **argv) {
  if (argc != 7) die("usage: usrbio_bench MOUNT FILE SHM SIZE DEPTH OFFSETS");
  size = strtoul(argv[4], NULL, 10);
  depth = strtoul(argv[5], NULL, 10);
  if (size == 0 || depth == 0 || depth > 65536) die("SIZE %s, DEPTH %s", argv[4], argv[5]);
  held = calloc(depth, sizeof *held);
  cqes = calloc(depth, sizeof *cqes);
  if (!held || !cqes) die("no memory");
  read_offsets(argv[6]);
  fd = open(argv[2], O_RDONLY);
  if (fd < 0) die("%s: %s", argv[2], strerror(errno));
  int err = hf3fs_reg_fd(fd, 0);
  if (err > 0) die("reg_fd: %s", strerror(err));
  wrap(argv[1], argv[3]);
  err = hf3fs_iorcreate4(&ior, argv[1], (int)depth, true, 0, 0, -1, 0);
  if (err < 0) die("iorcreate4: %s", strerror(-err));

  char line[128];
  while (fgets(line, sizeof line, stdin)) {
    if (strncmp(line, "rate ", 5) == 0)
      rate(strtod(line + 5, NULL));
    else if (strncmp(line, "cost ", 5) == 0)
      cost(strtoul(line + 5, NULL, 10));
    else
      die("unknown command %s", line);
    for (size_t slot = 0; slot < depth; slot++) printf(" %llu", (unsigned long long)held[slot]);
    putchar('\n');
    fflush(stdout);
  }
  hf3fs_iordestroy(&ior);
  unlink(link_name);
  hf3fs_dereg_fd(fd);
  close(fd);
  return 0;
}
