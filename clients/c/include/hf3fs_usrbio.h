/* SPDX-License-Identifier: Apache-2.0 */

/*
 * hf3fs_usrbio.h - the C interface of 3FS's user-space rings (USRBIO), as served by kv3fs.
 *
 * Names, struct layouts and constants are those of 3FS's own libhf3fs_api_shared.so, so programs
 * compile and link against either library, and each can replace the other.
 *
 * There are three return conventions, kept for compatibility:
 *   hf3fs_reg_fd                      <= 0 is success, > 0 is an errno
 *   hf3fs_hardlink, hf3fs_punchhole   0 is success, > 0 is an errno
 *   every other int                   >= 0 is success, < 0 is a negated errno
 *   (hf3fs_extract_mount_point        > 0 is success, -1 is "not on hf3fs")
 */
#ifndef HF3FS_USRBIO_H
#define HF3FS_USRBIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

struct timespec; /* <time.h> does not declare it under a strict -std=c99 */

/* What the GET_MAGIC_NUM ioctl returns on any descriptor of the file system; statfs never returns it. */
#define HF3FS_SUPER_MAGIC 0x8f3f5fff

/* Ring flags (hf3fs_iorcreate4). */
#define HF3FS_IOR_ALLOW_READ_UNCOMMITTED 1 /* a read may see a version that is still being committed */
#define HF3FS_IOR_FORBID_READ_HOLES 2      /* a hole before data fails with -ENODATA instead of reading as zeros */

typedef void *hf3fs_iov_handle;
typedef void *hf3fs_ior_handle;

/* A shared-memory data buffer. The caller owns the struct; the library owns what iovh points to. */
struct hf3fs_iov {
  uint8_t *base;         /* first byte of the mapping, which is byte 0 of the shared object */
  hf3fs_iov_handle iovh; /* null for a wrapped iov */
  char id[16];           /* the 16 raw bytes of the id, in text order */
  char mount_point[256];
  size_t size;
  size_t block_size; /* no I/O may cross a multiple of it, counted from base; 0: one block */
  int numa;          /* preferred node of the pages, < 0: none */
};

/* One ring, for reads only or for writes only. */
struct hf3fs_ior {
  struct hf3fs_iov iov; /* the memory of the ring itself */
  hf3fs_ior_handle iorh;
  char mount_point[256];
  bool for_read;
  int io_depth; /* > 0: batches of exactly that many; 0: as they come; < 0: at most that many */
  int priority; /* < 0 high, 0 normal, > 0 low */
  int timeout;  /* milliseconds a partial batch may wait when io_depth < 0 */
  uint64_t flags;
};

struct hf3fs_cqe {
  int32_t index; /* what hf3fs_prep_io returned */
  int32_t reserved;
  int64_t result; /* bytes transferred, or a negated errno */
  const void *userdata;
};

/* Safe from any thread. False for every descriptor that does not support ioctls, such as an O_PATH one. */
bool hf3fs_is_hf3fs(int fd);

/*
 * Finds the mount that holds path, which must exist. Returns strlen(mount) + 1, or -1 if path is
 * missing or not on hf3fs. If the result is larger than size, nothing was written.
 */
int hf3fs_extract_mount_point(char *hf3fs_mount_point, int size, const char *path);

/*
 * Buffers. The create functions overwrite *iov, whatever it contained, so destroying it after a
 * failure is harmless. Different threads may handle different iovs at the same time.
 */
int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size, size_t block_size, int numa);

/*
 * Beyond 3FS's library. Like hf3fs_iovcreate, but takes all the memory at once: -ENOSPC if /dev/shm is too
 * full, which otherwise is a SIGBUS at the first touch of a page.
 */
int hf3fs_iovcreate_reserved(struct hf3fs_iov *iov,
                             const char *hf3fs_mount_point,
                             size_t size,
                             size_t block_size,
                             int numa);

/* Maps an iov that another process of the same user has created with the same id and block_size. */
int hf3fs_iovopen(struct hf3fs_iov *iov,
                  const uint8_t id[16],
                  const char *hf3fs_mount_point,
                  size_t size,
                  size_t block_size,
                  int numa);

/* Removes the name of the shared object; the mapping and the registration stay. */
void hf3fs_iovunlink(struct hf3fs_iov *iov);

/*
 * Removes the registration (also that of an opened iov), the name and the mapping. A second call does nothing, also in
 * another thread at the same time.
 */
void hf3fs_iovdestroy(struct hf3fs_iov *iov);

/*
 * Describes memory whose shared object the caller has registered under exactly this id. buf must be
 * byte 0 of that object. The caller removes the registration.
 */
int hf3fs_iovwrap(struct hf3fs_iov *iov,
                  void *buf,
                  const uint8_t id[16],
                  const char *hf3fs_mount_point,
                  size_t size,
                  size_t block_size,
                  int numa);

/*
 * Beyond 3FS's library. Registers a wrapped iov: shm_name is its object in /dev/shm. hf3fs_iovdestroy then ends
 * the registration, and leaves object and memory to the caller.
 */
int hf3fs_iovregister(struct hf3fs_iov *iov, const char *shm_name);

/*
 * Beyond 3FS's library, for programs that outlive the daemon. A probe returns 0 while the daemon knows the
 * registration, -ENOTCONN once that daemon is gone, -ETIMEDOUT if it does not answer, -EAGAIN if another thread
 * is asking. A renewal registers with the daemon that is there now: an iov with its id and content, if its object
 * still has a name (-ENOENT or -EINVAL otherwise); a ring as a new one, without the requests that were in
 * flight. No other call may use the ring meanwhile. Files must be opened and registered again. A daemon that was started again
 * with the state of the one before it goes on with its rings: for these, hf3fs_iorprobe returns 0, and nothing needs to be renewed.
 */
int hf3fs_iovprobe(const struct hf3fs_iov *iov);
int hf3fs_iovrenew(struct hf3fs_iov *iov);

/* Bytes of shared memory that a ring with this many entries needs; 0 for a negative number. */
size_t hf3fs_ior_size(int entries);

/* Rings. Each function adds one parameter to the one before, but create4 has flags and no priority. */
int hf3fs_iorcreate(struct hf3fs_ior *ior,
                    const char *hf3fs_mount_point,
                    int entries,
                    bool for_read,
                    int io_depth,
                    int numa);
int hf3fs_iorcreate2(struct hf3fs_ior *ior,
                     const char *hf3fs_mount_point,
                     int entries,
                     bool for_read,
                     int io_depth,
                     int priority,
                     int numa);
int hf3fs_iorcreate3(struct hf3fs_ior *ior,
                     const char *hf3fs_mount_point,
                     int entries,
                     bool for_read,
                     int io_depth,
                     int priority,
                     int timeout,
                     int numa);
int hf3fs_iorcreate4(struct hf3fs_ior *ior,
                     const char *hf3fs_mount_point,
                     int entries,
                     bool for_read,
                     int io_depth,
                     int timeout,
                     int numa,
                     uint64_t flags);

/*
 * Does not wait for I/O in flight, which may still write into its buffers. A second call does nothing, also in
 * another thread at the same time. A thread that waits on the ring returns what it has, or -EINVAL, as do calls that
 * come later; *ior must exist until all of them have returned.
 */
void hf3fs_iordestroy(struct hf3fs_ior *ior);

/* See hf3fs_iovprobe. */
int hf3fs_iorprobe(const struct hf3fs_ior *ior);
int hf3fs_iorrenew(struct hf3fs_ior *ior);

/*
 * Registers an open file for hf3fs_prep_io. Returns a number <= 0 that names the registration just as
 * fd does, or a positive errno. flags is unused. Safe from any thread.
 */
int hf3fs_reg_fd(int fd, uint64_t flags);

/* Takes fd or the value that hf3fs_reg_fd returned. Also works after close(fd). Safe from any thread. */
void hf3fs_dereg_fd(int fd);

/* The number of requests that can be outstanding at once. */
int hf3fs_io_entries(const struct hf3fs_ior *ior);

/*
 * Queues one request, which may start before hf3fs_submit_ios. Returns its index. Only one thread at
 * a time may prepare on a ring; another thread may wait meanwhile. -EBUSY, here, from a submission and from a wait:
 * the ring is that of a parent process, which is running.
 */
int hf3fs_prep_io(const struct hf3fs_ior *ior,
                  const struct hf3fs_iov *iov,
                  bool read,
                  void *ptr,
                  int fd,
                  size_t off,
                  uint64_t len,
                  const void *userdata);

/*
 * Wakes the daemon, through a semaphore that only processes of this user can open. If one of them has
 * damaged it, the daemon finds the requests some 50 ms later.
 */
int hf3fs_submit_ios(const struct hf3fs_ior *ior);

/*
 * Collects up to cqec completions. Returns when there are at least min_results, or at abs_timeout (an
 * absolute CLOCK_REALTIME time; null: never), which is not an error. min_results <= 0 polls. Setting the clock
 * during the call does not change how long it lasts. Without abs_timeout it ends with -ENOTCONN if the daemon
 * is gone, and no other one has gone on with the ring for a minute.
 */
int hf3fs_wait_for_ios(const struct hf3fs_ior *ior,
                       struct hf3fs_cqe *cqes,
                       int cqec,
                       int min_results,
                       const struct timespec *abs_timeout);

int hf3fs_hardlink(const char *target, const char *link_name);

/* Byte ranges [start[i], end[i]) in whole chunks (st_blksize), at most 1000 of them. */
int hf3fs_punchhole(int fd, int n, const size_t *start, const size_t *end, size_t flags);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
