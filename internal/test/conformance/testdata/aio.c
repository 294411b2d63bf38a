/* SPDX-License-Identifier: Apache-2.0 */

/* Linux AIO with an eventfd and O_DIRECT, as UCM's aio engine uses it: writes a file in 16 requests of
 * 64 KiB, reads it back the same way, and compares. Prints "ok". */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REQUESTS 16
#define BYTES 65536

static int fail(const char *what) {
  printf("%s: %s\n", what, strerror(errno));
  return 1;
}

static int round_trip(aio_context_t ctx, int fd, int event, uint16_t op, char *buf) {
  static struct iocb cbs[REQUESTS];
  struct iocb *list[REQUESTS];
  struct io_event events[REQUESTS];
  for (int i = 0; i < REQUESTS; i++) {
    cbs[i] = (struct iocb){.aio_lio_opcode = op,
                           .aio_fildes = (uint32_t)fd,
                           .aio_buf = (uintptr_t)(buf + i * BYTES),
                           .aio_nbytes = BYTES,
                           .aio_offset = (int64_t)i * BYTES,
                           .aio_flags = IOCB_FLAG_RESFD,
                           .aio_resfd = (uint32_t)event,
                           .aio_data = (uint64_t)i};
    list[i] = &cbs[i];
  }
  if (syscall(SYS_io_submit, ctx, REQUESTS, list) != REQUESTS) {
    return fail("io_submit");
  }
  for (int done = 0; done < REQUESTS;) {
    struct pollfd p = {.fd = event, .events = POLLIN};
    uint64_t count;
    if (poll(&p, 1, 20000) != 1 || read(event, &count, sizeof(count)) != sizeof(count)) {
      return fail("eventfd");
    }
    long n = syscall(SYS_io_getevents, ctx, 1, REQUESTS, events, NULL);
    for (long i = 0; i < n; i++) {
      if (events[i].res != BYTES) {
        errno = (int)-events[i].res;
        return fail("result");
      }
    }
    done += (int)n;
  }
  return 0;
}

int main(int argc, char **argv) {
  aio_context_t ctx = 0;
  int fd = argc > 1 ? open(argv[1], O_RDWR | O_CREAT | O_DIRECT, 0644) : -1, event = eventfd(0, 0);
  char *out = aligned_alloc(4096, REQUESTS * BYTES), *in = aligned_alloc(4096, REQUESTS * BYTES);
  if (fd < 0 || event < 0 || out == NULL || in == NULL || syscall(SYS_io_setup, REQUESTS, &ctx) != 0) {
    return fail("setup");
  }
  for (int i = 0; i < REQUESTS * BYTES; i++) {
    out[i] = (char)(i * 7 + i / 4096);
  }
  if (round_trip(ctx, fd, event, IOCB_CMD_PWRITE, out) != 0 || round_trip(ctx, fd, event, IOCB_CMD_PREAD, in) != 0) {
    return 1;
  }
  if (memcmp(out, in, REQUESTS * BYTES) != 0) {
    printf("other bytes\n");
    return 1;
  }
  printf("ok\n");
  return 0;
}
