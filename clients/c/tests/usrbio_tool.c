/* SPDX-License-Identifier: Apache-2.0 */

/*
 * usrbio_tool drives the library from a script: one command a line on stdin, one answer a line on
 * stdout. Lines that are empty or begin with # get no answer. End of input ends the program.
 *
 *   ok [key=value ...]      success
 *   err NUMBER [text]       NUMBER is exactly what the library returned (or the errno of a system
 *                           call, positive); -9999 means that the command line was wrong
 *
 * Arguments are separated by blanks and cannot contain any. Numbers may be decimal, 0x or octal.
 * FD is a NAME given to `open`, or a number, or `handle:NAME` for what `reg` returned for NAME.
 * MEM is the NAME of an iov, a ring (its own memory) or a mapping made by `shm` or `map`.
 * ID is 32 hex digits or a dashed uuid. READ is r or w (or 1 or 0). Defaults stand in [].
 *
 * Files
 *   open NAME PATH FLAGS [MODE=0644]       FLAGS: number, or rdonly wronly rdwr creat excl trunc append
 *                                          direct sync nonblock directory path, joined by commas -> fd=
 *   close FD                               the name keeps its number, to name a stale descriptor
 *   fstat FD                               -> ino= size= blksize= dev= mode= blocks= mtime= (ns)
 *   fsync FD | ftruncate FD SIZE
 *   pwrite FD OFF LEN SEED                 through the kernel, with the bytes of `fill` -> n=
 *   pread FD OFF LEN                       -> n= crc=
 *   is_hf3fs FD                            -> value=0|1
 *   extract PATH [BUFSIZE=4096]            -> ret= mount=  (mount=- if nothing was written)
 *   hardlink TARGET LINK
 *   punchhole FD FLAGS [START:END ...]     more than 1000 ranges: punchhole_n
 *   punchhole_n FD N                       N ranges of [0,0)
 *   force_fsync FD                         the ioctl without a third argument
 *   ioctl FD NUMBER [HEX]                  with a 32 KiB buffer beginning with HEX -> ret= out=
 *   ioctl_ptr FD NUMBER POINTER            with any third argument -> ret=
 *   symlink TARGET PATH | unlink PATH | readlink PATH -> target= | list DIR -> n= then the names
 *
 * Buffers
 *   iovcreate NAME MOUNT SIZE BLOCK NUMA   -> id= uuid=
 *   iovopen NAME ID MOUNT SIZE BLOCK NUMA
 *   iovwrap NAME MEM ID MOUNT SIZE BLOCK NUMA
 *   iovunlink NAME | iovdestroy NAME       a NAME can be created again afterwards
 *   iovprobe NAME | iovrenew NAME
 *   shm NAME SHMNAME SIZE                  shm_open + ftruncate + mmap | shm_unlink SHMNAME
 *   map NAME FD SIZE HOW                   the first SIZE bytes of a file: shared, readable (shared, but
 *                                          only to read) or private | unmap NAME
 *   fill MEM OFF LEN SEED                  byte i = ((SEED + i) * 0x9E3779B97F4A7C15 mod 2^64) >> 56
 *   check MEM OFF LEN SEED                 err 74 at=I got=B want=B if it differs
 *   zero MEM OFF LEN | crc MEM OFF LEN     -> crc= (CRC-32C, 8 hex digits)
 *   poke MEM OFF HEX | peek MEM OFF LEN    -> hex=
 *   truncate_shm MEM SIZE                  resizes the object under the mapping (root)
 *   info NAME                              every field of the struct
 *
 * Rings
 *   iorcreate  NAME MOUNT ENTRIES READ DEPTH NUMA
 *   iorcreate2 NAME MOUNT ENTRIES READ DEPTH PRIORITY NUMA
 *   iorcreate3 NAME MOUNT ENTRIES READ DEPTH PRIORITY TIMEOUT NUMA
 *   iorcreate4 NAME MOUNT ENTRIES READ DEPTH TIMEOUT NUMA FLAGS      each -> id= uuid=
 *   iorprobe NAME | iorrenew NAME
 *   iordestroy NAME | entries NAME -> n= | iorsize ENTRIES -> bytes=
 *   reg FD [FLAGS=0]                       -> ret= (<= 0); err ERRNO otherwise
 *   dereg FD
 *   prep IOR IOV READ OFF_IN_IOV FD FILEOFF LEN USERDATA             -> index=
 *   prep_many IOR IOV READ OFF_IN_IOV FD FILEOFF LEN COUNT USERDATA  request i at +i*LEN in both, with
 *                                          userdata+i -> n= stop= (the result that ended it, 0: none)
 *   submit IOR
 *   wait IOR CQEC MIN TIMEOUT              TIMEOUT: milliseconds from now, inf, or past
 *                                          -> n= then index:result:userdata ...
 *   markers IOR                            -> sqe_head= sqe_tail= cqe_head= cqe_tail= sem= ring_len=
 *   raw_prep IOR INDEX ID|IOV BUFOFF INO FILEOFF LEN USERDATA
 *                                          writes args[INDEX], an sqe and sqe_head past the library;
 *                                          INDEX ring_len-1 is one it never uses
 *   raw_sqe IOR INDEX USERDATA             an sqe alone, with any index
 *   raw_reap IOR MAX MIN TIMEOUT_MS        takes completions past the library -> as wait
 *
 * The process
 *   pid -> pid= tid= | sleep MS | env NAME [VALUE]   (no VALUE: unset)
 *   thread COMMAND...                      in a new thread, and waits for it
 *   spawn LABEL COMMAND...                 in a new thread, without waiting | join LABEL -> its answer
 *   fork_hold [pause|exit]                 a child goes on reading commands with everything inherited;
 *                                          the parent sleeps until the child ends, and then ends with
 *                                          the child's status (pause), or is gone at once (exit) -> pid= parent=
 *   fork_idle                              a child keeps all but stdio open and sleeps; kill it -> pid=
 *   exit [STATUS] | abort | kill           no cleanup; kill is SIGKILL. No answer.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"

#define USAGE (-9999)
#define MAX_ARGS 1100
#define FORCE_FSYNC 0x8004680BUL

/* ---- named things ---- */

enum kind { FILE_KIND = 1, IOV_KIND, IOR_KIND, SHM_KIND, TASK_KIND };

struct task {
  pthread_t thread;
  int argc;
  char **argv;
  char *line;
  char *answer;
};

struct thing {
  struct thing *next;
  enum kind kind;
  char *name;
  int fd;     /* FILE_KIND */
  int handle; /* FILE_KIND: what reg returned */
  struct hf3fs_iov iov;
  struct hf3fs_ior ior;
  uint8_t *base; /* SHM_KIND */
  size_t size;
  struct task task;
};

static pthread_mutex_t things_mu = PTHREAD_MUTEX_INITIALIZER;
static struct thing *things;

static struct thing *find(enum kind kind, const char *name) {
  pthread_mutex_lock(&things_mu);
  struct thing *t = things;
  while (t != NULL && (t->kind != kind || strcmp(t->name, name) != 0)) {
    t = t->next;
  }
  pthread_mutex_unlock(&things_mu);
  return t;
}

static struct thing *find_or_make(enum kind kind, const char *name) {
  struct thing *t = find(kind, name);
  if (t != NULL) {
    return t;
  }
  t = calloc(1, sizeof(*t));
  if (t == NULL || (t->name = strdup(name)) == NULL) {
    abort();
  }
  t->kind = kind;
  pthread_mutex_lock(&things_mu);
  t->next = things;
  things = t;
  pthread_mutex_unlock(&things_mu);
  return t;
}

/* ---- arguments ---- */

static long long number(const char *s) { return s[0] == '-' ? strtoll(s, NULL, 0) : (long long)strtoull(s, NULL, 0); }

static int integer(const char *s) { return (int)number(s); }

static bool direction(const char *s) { return s[0] == 'r' || s[0] == '1' || s[0] == 't'; }

/* Also accepts strings for "no mount given" and "the null pointer". */
static const char *mount_arg(const char *s) { return strcmp(s, "NULL") == 0 ? NULL : strcmp(s, "EMPTY") == 0 ? "" : s; }

static int fd_arg(const char *s) {
  bool handle = strncmp(s, "handle:", 7) == 0;
  const struct thing *t = find(FILE_KIND, handle ? s + 7 : s);
  if (t != NULL) {
    return handle ? t->handle : t->fd;
  }
  return integer(s);
}

static size_t from_hex(const char *s, uint8_t *out, size_t room) {
  size_t n = 0;
  int high = -1;
  for (; *s != '\0' && n < room; s++) {
    if (*s == '-') {
      continue;
    }
    char digit[2] = {*s, '\0'};
    int v = (int)strtol(digit, NULL, 16);
    if (high < 0) {
      high = v;
    } else {
      out[n++] = (uint8_t)(high * 16 + v);
      high = -1;
    }
  }
  return n;
}

static void to_hex(FILE *out, const uint8_t *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) {
    fprintf(out, "%02x", bytes[i]);
  }
}

static bool mem_arg(const char *name, uint8_t **base, size_t *size) {
  const struct thing *t;
  if ((t = find(IOV_KIND, name)) != NULL) {
    *base = t->iov.base;
    *size = t->iov.size;
  } else if ((t = find(IOR_KIND, name)) != NULL) {
    *base = t->ior.iov.base;
    *size = t->ior.iov.size;
  } else if ((t = find(SHM_KIND, name)) != NULL) {
    *base = t->base;
    *size = t->size;
  } else {
    return false;
  }
  return *base != NULL;
}

/* A checked range of a MEM. */
static uint8_t *range_arg(char **argv, uint64_t *len) {
  uint8_t *base;
  size_t size;
  uint64_t off = (uint64_t)number(argv[1]);
  *len = (uint64_t)number(argv[2]);
  if (!mem_arg(argv[0], &base, &size) || off > size || *len > size - off) {
    return NULL;
  }
  return base + off;
}

static int open_flags(const char *s) {
  static const struct {
    const char *name;
    int flag;
  } names[] = {{"rdonly", O_RDONLY}, {"wronly", O_WRONLY},     {"rdwr", O_RDWR},           {"creat", O_CREAT},
               {"excl", O_EXCL},     {"trunc", O_TRUNC},       {"append", O_APPEND},       {"direct", O_DIRECT},
               {"sync", O_SYNC},     {"nonblock", O_NONBLOCK}, {"directory", O_DIRECTORY}, {"path", O_PATH}};
  if (s[0] >= '0' && s[0] <= '9') {
    return integer(s);
  }
  int flags = 0;
  for (const char *p = s; *p != '\0';) {
    size_t n = strcspn(p, ",|");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
      if (strlen(names[i].name) == n && strncmp(names[i].name, p, n) == 0) {
        flags |= names[i].flag;
      }
    }
    p += n + (p[n] != '\0');
  }
  return flags;
}

/* ---- data ---- */

static uint8_t pattern(uint64_t seed, uint64_t i) { return (uint8_t)((seed + i) * UINT64_C(0x9E3779B97F4A7C15) >> 56); }

static uint32_t crc32c(const uint8_t *p, uint64_t n) {
  uint32_t table[256];
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t c = i;
    for (int k = 0; k < 8; k++) {
      c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
    }
    table[i] = c;
  }
  uint32_t crc = UINT32_MAX;
  for (uint64_t i = 0; i < n; i++) {
    crc = crc >> 8 ^ table[(crc ^ p[i]) & 0xff];
  }
  return ~crc;
}

static void print_id(FILE *out, const char id[16]) {
  const uint8_t *b = (const uint8_t *)id;
  fprintf(out, " id=");
  to_hex(out, b, 16);
  fprintf(out, " uuid=");
  for (int i = 0; i < 16; i++) {
    fprintf(out, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
  }
}

/* ---- commands: argv without the command's name; 0 or the number after err ---- */

static int do_open(FILE *out, int argc, char **argv) {
  int fd = open(argv[1], open_flags(argv[2]), argc > 3 ? (mode_t)number(argv[3]) : 0644);
  if (fd < 0) {
    return errno;
  }
  find_or_make(FILE_KIND, argv[0])->fd = fd;
  fprintf(out, " fd=%d", fd);
  return 0;
}

static int do_close(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  return close(fd_arg(argv[0])) == 0 ? 0 : errno;
}

static int do_fstat(FILE *out, int argc, char **argv) {
  (void)argc;
  struct stat st;
  if (fstat(fd_arg(argv[0]), &st) != 0) {
    return errno;
  }
  fprintf(out, " ino=%" PRIu64 " size=%lld blksize=%ld dev=%" PRIu64 " mode=%o blocks=%lld mtime=%lld%09ld",
          (uint64_t)st.st_ino, (long long)st.st_size, (long)st.st_blksize, (uint64_t)st.st_dev, st.st_mode,
          (long long)st.st_blocks, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
  return 0;
}

static int do_fsync(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  return fsync(fd_arg(argv[0])) == 0 ? 0 : errno;
}

static int do_ftruncate(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  return ftruncate(fd_arg(argv[0]), number(argv[1])) == 0 ? 0 : errno;
}

/* Page-aligned, as direct I/O needs it. */
static uint8_t *scratch(size_t len) {
  uint8_t *p = aligned_alloc(4096, (len / 4096 + 1) * 4096);
  if (p == NULL) {
    abort();
  }
  return p;
}

static int do_pwrite(FILE *out, int argc, char **argv) {
  (void)argc;
  size_t len = (size_t)number(argv[2]);
  uint64_t seed = (uint64_t)number(argv[3]);
  uint8_t *p = scratch(len);
  for (size_t i = 0; i < len; i++) {
    p[i] = pattern(seed, i);
  }
  ssize_t n = pwrite(fd_arg(argv[0]), p, len, number(argv[1]));
  int err = errno;
  free(p);
  fprintf(out, " n=%zd", n);
  return n < 0 ? err : 0;
}

static int do_pread(FILE *out, int argc, char **argv) {
  (void)argc;
  size_t len = (size_t)number(argv[2]);
  uint8_t *p = scratch(len);
  ssize_t n = pread(fd_arg(argv[0]), p, len, number(argv[1]));
  int err = errno;
  if (n >= 0) {
    fprintf(out, " n=%zd crc=%08x", n, crc32c(p, (uint64_t)n));
  }
  free(p);
  return n < 0 ? err : 0;
}

static int do_is_hf3fs(FILE *out, int argc, char **argv) {
  (void)argc;
  fprintf(out, " value=%d", hf3fs_is_hf3fs(fd_arg(argv[0])));
  return 0;
}

static int do_extract(FILE *out, int argc, char **argv) {
  int size = argc > 1 ? integer(argv[1]) : 4096;
  size_t room = size > 0 ? (size_t)size : 0;
  char *buf = malloc(room + 1);
  if (buf == NULL) {
    abort();
  }
  memset(buf, 0x7f, room + 1);
  int ret = hf3fs_extract_mount_point(buf, size, argv[0]);
  bool written = room > 0 && buf[0] != 0x7f;
  if (ret > 0) {
    fprintf(out, " ret=%d mount=%s", ret, written ? buf : "-");
  } else if (written) {
    fprintf(out, " buffer touched");
  }
  free(buf);
  return ret > 0 ? 0 : ret;
}

static int do_hardlink(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  return hf3fs_hardlink(argv[0], argv[1]);
}

static int do_punchhole(FILE *out, int argc, char **argv) {
  (void)out;
  static size_t start[MAX_ARGS], end[MAX_ARGS];
  int n = argc - 2;
  for (int i = 0; i < n; i++) {
    char *colon = strchr(argv[2 + i], ':');
    if (colon == NULL) {
      return USAGE;
    }
    *colon = '\0';
    start[i] = (size_t)number(argv[2 + i]);
    end[i] = (size_t)number(colon + 1);
  }
  return hf3fs_punchhole(fd_arg(argv[0]), n, start, end, (size_t)number(argv[1]));
}

static int do_punchhole_n(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  int n = integer(argv[1]);
  size_t *zeros = calloc(n > 0 ? (size_t)n : 1, sizeof(*zeros));
  int err = hf3fs_punchhole(fd_arg(argv[0]), n, zeros, zeros, 0);
  free(zeros);
  return err;
}

static int do_force_fsync(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  return ioctl(fd_arg(argv[0]), FORCE_FSYNC) == 0 ? 0 : errno;
}

static int do_ioctl(FILE *out, int argc, char **argv) {
  unsigned long cmd = (unsigned long)number(argv[1]);
  uint8_t *buf = calloc(1, 32768);
  if (buf == NULL) {
    abort();
  }
  if (argc > 2) {
    from_hex(argv[2], buf, 32768);
  }
  int ret = ioctl(fd_arg(argv[0]), cmd, buf);
  int err = errno;
  if (ret >= 0) {
    fprintf(out, " ret=%d out=", ret);
    to_hex(out, buf, _IOC_DIR(cmd) & _IOC_READ ? _IOC_SIZE(cmd) : 0);
  }
  free(buf);
  return ret < 0 ? err : 0;
}

static int do_ioctl_ptr(FILE *out, int argc, char **argv) {
  (void)argc;
  int ret = ioctl(fd_arg(argv[0]), (unsigned long)number(argv[1]), (void *)(uintptr_t)number(argv[2]));
  if (ret < 0) {
    return errno;
  }
  fprintf(out, " ret=%d", ret);
  return 0;
}

static int do_symlink(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  return symlink(argv[0], argv[1]) == 0 ? 0 : errno;
}

static int do_unlink(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  return unlink(argv[0]) == 0 ? 0 : errno;
}

static int do_readlink(FILE *out, int argc, char **argv) {
  (void)argc;
  char target[PATH_MAX];
  ssize_t n = readlink(argv[0], target, sizeof(target));
  if (n < 0) {
    return errno;
  }
  fprintf(out, " target=%.*s", (int)n, target);
  return 0;
}

static int do_list(FILE *out, int argc, char **argv) {
  (void)argc;
  DIR *dir = opendir(argv[0]);
  if (dir == NULL) {
    return errno;
  }
  char *names = NULL;
  size_t size = 0;
  FILE *list = open_memstream(&names, &size);
  int n = 0;
  for (struct dirent *e; (e = readdir(dir)) != NULL; n++) {
    fprintf(list, " %s", e->d_name);
  }
  closedir(dir);
  fclose(list);
  fprintf(out, " n=%d%s", n, names);
  free(names);
  return 0;
}

static int made_iov(FILE *out, struct thing *t, const struct hf3fs_iov *iov, int ret) {
  if (ret != 0) {
    return ret;
  }
  t->iov = *iov;
  print_id(out, iov->id);
  return 0;
}

static int do_iovcreate(FILE *out, int argc, char **argv) {
  (void)argc;
  struct hf3fs_iov iov;
  int ret = hf3fs_iovcreate(&iov, mount_arg(argv[1]), (size_t)number(argv[2]), (size_t)number(argv[3]), integer(argv[4]));
  return made_iov(out, find_or_make(IOV_KIND, argv[0]), &iov, ret);
}

static int do_iovopen(FILE *out, int argc, char **argv) {
  (void)argc;
  struct hf3fs_iov iov;
  uint8_t id[16] = {0};
  from_hex(argv[1], id, sizeof(id));
  int ret = hf3fs_iovopen(&iov, id, mount_arg(argv[2]), (size_t)number(argv[3]), (size_t)number(argv[4]), integer(argv[5]));
  return made_iov(out, find_or_make(IOV_KIND, argv[0]), &iov, ret);
}

static int do_iovwrap(FILE *out, int argc, char **argv) {
  (void)argc;
  struct hf3fs_iov iov;
  uint8_t id[16] = {0}, *base;
  size_t size;
  if (!mem_arg(argv[1], &base, &size)) {
    return USAGE;
  }
  from_hex(argv[2], id, sizeof(id));
  int ret = hf3fs_iovwrap(&iov, base, id, mount_arg(argv[3]), (size_t)number(argv[4]), (size_t)number(argv[5]),
                          integer(argv[6]));
  return made_iov(out, find_or_make(IOV_KIND, argv[0]), &iov, ret);
}

static int do_iovunlink(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  struct thing *t = find(IOV_KIND, argv[0]);
  if (t == NULL) {
    return USAGE;
  }
  hf3fs_iovunlink(&t->iov);
  return 0;
}

static int do_iovdestroy(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  struct thing *t = find(IOV_KIND, argv[0]);
  if (t == NULL) {
    return USAGE;
  }
  hf3fs_iovdestroy(&t->iov);
  return 0;
}

static int do_iovprobe(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  const struct thing *t = find(IOV_KIND, argv[0]);
  return t == NULL ? USAGE : hf3fs_iovprobe(&t->iov);
}

static int do_iovrenew(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  struct thing *t = find(IOV_KIND, argv[0]);
  return t == NULL ? USAGE : hf3fs_iovrenew(&t->iov);
}

static int do_shm(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  size_t size = (size_t)number(argv[2]);
  int fd = shm_open(argv[1], O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
    return errno;
  }
  struct thing *t = find_or_make(SHM_KIND, argv[0]);
  void *base = size == 0 ? NULL : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (base == MAP_FAILED) {
    return errno;
  }
  t->base = base;
  t->size = size;
  return 0;
}

static int do_shm_unlink(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  return shm_unlink(argv[0]) == 0 ? 0 : errno;
}

static int do_map(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  size_t size = (size_t)number(argv[2]);
  int prot = strcmp(argv[3], "readable") == 0 ? PROT_READ : PROT_READ | PROT_WRITE;
  int how = strcmp(argv[3], "private") == 0 ? MAP_PRIVATE : MAP_SHARED;
  void *base = mmap(NULL, size, prot, how, fd_arg(argv[1]), 0);
  if (base == MAP_FAILED) {
    return errno;
  }
  struct thing *t = find_or_make(SHM_KIND, argv[0]);
  t->base = base;
  t->size = size;
  return 0;
}

static int do_unmap(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  struct thing *t = find(SHM_KIND, argv[0]);
  if (t == NULL || t->base == NULL) {
    return USAGE;
  }
  int failed = munmap(t->base, t->size);
  t->base = NULL;
  return failed == 0 ? 0 : errno;
}

static int do_fill(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  uint64_t len, seed = (uint64_t)number(argv[3]);
  uint8_t *p = range_arg(argv, &len);
  if (p == NULL) {
    return USAGE;
  }
  for (uint64_t i = 0; i < len; i++) {
    p[i] = pattern(seed, i);
  }
  return 0;
}

static int do_check(FILE *out, int argc, char **argv) {
  (void)argc;
  uint64_t len, seed = (uint64_t)number(argv[3]);
  const uint8_t *p = range_arg(argv, &len);
  if (p == NULL) {
    return USAGE;
  }
  for (uint64_t i = 0; i < len; i++) {
    if (p[i] != pattern(seed, i)) {
      fprintf(out, " at=%" PRIu64 " got=%d want=%d", i, p[i], pattern(seed, i));
      return EBADMSG;
    }
  }
  return 0;
}

static int do_zero(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  uint64_t len;
  uint8_t *p = range_arg(argv, &len);
  if (p == NULL) {
    return USAGE;
  }
  memset(p, 0, len);
  return 0;
}

static int do_crc(FILE *out, int argc, char **argv) {
  (void)argc;
  uint64_t len;
  const uint8_t *p = range_arg(argv, &len);
  if (p == NULL) {
    return USAGE;
  }
  fprintf(out, " crc=%08x", crc32c(p, len));
  return 0;
}

static int do_poke(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  uint8_t bytes[65536];
  size_t n = from_hex(argv[2], bytes, sizeof(bytes));
  char digits[32];
  snprintf(digits, sizeof(digits), "%zu", n);
  char *args[] = {argv[0], argv[1], digits};
  uint64_t len;
  uint8_t *p = range_arg(args, &len);
  if (p == NULL) {
    return USAGE;
  }
  memcpy(p, bytes, n);
  return 0;
}

static int do_peek(FILE *out, int argc, char **argv) {
  (void)argc;
  uint64_t len;
  const uint8_t *p = range_arg(argv, &len);
  if (p == NULL) {
    return USAGE;
  }
  fprintf(out, " hex=");
  to_hex(out, p, len);
  return 0;
}

/* The object may have lost its name, but root can reach it through the mapping. */
static int do_truncate_shm(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  uint8_t *base;
  size_t size;
  if (!mem_arg(argv[0], &base, &size)) {
    return USAGE;
  }
  FILE *maps = fopen("/proc/self/maps", "re");
  if (maps == NULL) {
    return errno;
  }
  char line[PATH_MAX + 128], path[128] = "";
  while (fgets(line, sizeof(line), maps) != NULL) {
    unsigned long from, to;
    if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from == (unsigned long)(uintptr_t)base) {
      snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", from, to);
    }
  }
  fclose(maps);
  return truncate(path, number(argv[1])) == 0 ? 0 : errno;
}

static int do_info(FILE *out, int argc, char **argv) {
  (void)argc;
  const struct thing *v = find(IOV_KIND, argv[0]), *r = find(IOR_KIND, argv[0]);
  if (v == NULL && r == NULL) {
    return USAGE;
  }
  const struct hf3fs_iov *iov = r != NULL ? &r->ior.iov : &v->iov;
  fprintf(out, " base=%p handle=%d", (void *)iov->base, (r != NULL ? r->ior.iorh : iov->iovh) != NULL);
  print_id(out, iov->id);
  fprintf(out, " mount=%s size=%zu block_size=%zu numa=%d", iov->mount_point, iov->size, iov->block_size, iov->numa);
  if (r != NULL) {
    fprintf(out, " for_read=%d io_depth=%d priority=%d timeout=%d flags=%" PRIu64, r->ior.for_read, r->ior.io_depth,
            r->ior.priority, r->ior.timeout, r->ior.flags);
  }
  return 0;
}

static int made_ior(FILE *out, const char *name, const struct hf3fs_ior *ior, int ret) {
  if (ret != 0) {
    return ret;
  }
  find_or_make(IOR_KIND, name)->ior = *ior;
  print_id(out, ior->iov.id);
  return 0;
}

static int do_iorcreate(FILE *out, int argc, char **argv) {
  (void)argc;
  struct hf3fs_ior ior;
  int ret = hf3fs_iorcreate(&ior, mount_arg(argv[1]), integer(argv[2]), direction(argv[3]), integer(argv[4]),
                            integer(argv[5]));
  return made_ior(out, argv[0], &ior, ret);
}

static int do_iorcreate2(FILE *out, int argc, char **argv) {
  (void)argc;
  struct hf3fs_ior ior;
  int ret = hf3fs_iorcreate2(&ior, mount_arg(argv[1]), integer(argv[2]), direction(argv[3]), integer(argv[4]),
                             integer(argv[5]), integer(argv[6]));
  return made_ior(out, argv[0], &ior, ret);
}

static int do_iorcreate3(FILE *out, int argc, char **argv) {
  (void)argc;
  struct hf3fs_ior ior;
  int ret = hf3fs_iorcreate3(&ior, mount_arg(argv[1]), integer(argv[2]), direction(argv[3]), integer(argv[4]),
                             integer(argv[5]), integer(argv[6]), integer(argv[7]));
  return made_ior(out, argv[0], &ior, ret);
}

static int do_iorcreate4(FILE *out, int argc, char **argv) {
  (void)argc;
  struct hf3fs_ior ior;
  int ret = hf3fs_iorcreate4(&ior, mount_arg(argv[1]), integer(argv[2]), direction(argv[3]), integer(argv[4]),
                             integer(argv[5]), integer(argv[6]), (uint64_t)number(argv[7]));
  return made_ior(out, argv[0], &ior, ret);
}

static int do_iordestroy(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  struct thing *t = find(IOR_KIND, argv[0]);
  if (t == NULL) {
    return USAGE;
  }
  hf3fs_iordestroy(&t->ior);
  return 0;
}

static int do_iorprobe(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  const struct thing *t = find(IOR_KIND, argv[0]);
  return t == NULL ? USAGE : hf3fs_iorprobe(&t->ior);
}

static int do_iorrenew(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  struct thing *t = find(IOR_KIND, argv[0]);
  return t == NULL ? USAGE : hf3fs_iorrenew(&t->ior);
}

static int do_entries(FILE *out, int argc, char **argv) {
  (void)argc;
  const struct thing *t = find(IOR_KIND, argv[0]);
  if (t == NULL) {
    return USAGE;
  }
  int n = hf3fs_io_entries(&t->ior);
  fprintf(out, " n=%d", n);
  return n < 0 ? n : 0;
}

static int do_iorsize(FILE *out, int argc, char **argv) {
  (void)argc;
  fprintf(out, " bytes=%zu", hf3fs_ior_size(integer(argv[0])));
  return 0;
}

static int do_reg(FILE *out, int argc, char **argv) {
  int ret = hf3fs_reg_fd(fd_arg(argv[0]), argc > 1 ? (uint64_t)number(argv[1]) : 0);
  if (ret > 0) {
    return ret;
  }
  struct thing *t = find(FILE_KIND, argv[0]);
  if (t != NULL) {
    t->handle = ret;
  }
  fprintf(out, " ret=%d", ret);
  return 0;
}

static int do_dereg(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  hf3fs_dereg_fd(fd_arg(argv[0]));
  return 0;
}

static int prep(char **argv, uint64_t shift, uint64_t nth) {
  const struct thing *r = find(IOR_KIND, argv[0]), *v = find(IOV_KIND, argv[1]);
  if (r == NULL || v == NULL) {
    return USAGE;
  }
  /* Computed as integers: hostile tests point outside the buffer on purpose. */
  void *ptr = (void *)((uintptr_t)v->iov.base + (uint64_t)number(argv[3]) + shift);
  return hf3fs_prep_io(&r->ior, &v->iov, direction(argv[2]), ptr, fd_arg(argv[4]), (uint64_t)number(argv[5]) + shift,
                       (uint64_t)number(argv[6]), (void *)((uintptr_t)number(argv[7 + (nth != UINT64_MAX)]) +
                                                           (nth != UINT64_MAX ? nth : 0)));
}

static int do_prep(FILE *out, int argc, char **argv) {
  (void)argc;
  int index = prep(argv, 0, UINT64_MAX);
  if (index < 0) {
    return index;
  }
  fprintf(out, " index=%d", index);
  return 0;
}

static int do_prep_many(FILE *out, int argc, char **argv) {
  (void)argc;
  uint64_t count = (uint64_t)number(argv[7]), len = (uint64_t)number(argv[6]), n = 0;
  int result = 0;
  while (n < count && (result = prep(argv, n * len, n)) >= 0) {
    n++;
  }
  fprintf(out, " n=%" PRIu64 " stop=%d", n, result < 0 ? result : 0);
  return result == USAGE ? USAGE : 0;
}

static int do_submit(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  const struct thing *r = find(IOR_KIND, argv[0]);
  return r == NULL ? USAGE : hf3fs_submit_ios(&r->ior);
}

static struct timespec in_ms(long long ms) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  long long ns = t.tv_nsec + ms % 1000 * 1000000;
  t.tv_sec += ms / 1000 + ns / 1000000000;
  t.tv_nsec = ns % 1000000000;
  return t;
}

static void print_cqes(FILE *out, const struct hf3fs_cqe *cqes, int n) {
  fprintf(out, " n=%d", n);
  for (int i = 0; i < n; i++) {
    fprintf(out, " %d:%" PRId64 ":%" PRIuPTR, cqes[i].index, cqes[i].result, (uintptr_t)cqes[i].userdata);
  }
}

static int do_wait(FILE *out, int argc, char **argv) {
  (void)argc;
  const struct thing *r = find(IOR_KIND, argv[0]);
  if (r == NULL) {
    return USAGE;
  }
  int cqec = integer(argv[1]);
  struct hf3fs_cqe *cqes = calloc(cqec > 0 ? (size_t)cqec : 1, sizeof(*cqes));
  struct timespec deadline = {0};
  bool forever = strcmp(argv[3], "inf") == 0;
  if (!forever && strcmp(argv[3], "past") != 0) {
    deadline = in_ms(number(argv[3]));
  }
  int n = hf3fs_wait_for_ios(&r->ior, cqes, cqec, integer(argv[2]), forever ? NULL : &deadline);
  if (n >= 0) {
    print_cqes(out, cqes, n);
  }
  free(cqes);
  return n < 0 ? n : 0;
}

/* ---- the ring without the library, from the specification alone ---- */

struct raw {
  uint8_t *base;
  uint32_t ring_len;
};

static bool raw_arg(const char *name, struct raw *raw) {
  const struct thing *r = find(IOR_KIND, name);
  if (r == NULL || r->ior.iov.base == NULL) {
    return false;
  }
  raw->base = r->ior.iov.base;
  raw->ring_len = (uint32_t)((r->ior.iov.size - 4144) / 96);
  return true;
}

static _Atomic uint32_t *marker(const struct raw *r, size_t i) { return (_Atomic uint32_t *)(void *)(r->base + 4 * i); }

static int do_markers(FILE *out, int argc, char **argv) {
  (void)argc;
  struct raw r;
  if (!raw_arg(argv[0], &r)) {
    return USAGE;
  }
  int32_t sem;
  memcpy(&sem, r.base + 16 + 96 * (size_t)r.ring_len, sizeof(sem));
  fprintf(out, " sqe_head=%d sqe_tail=%d cqe_head=%d cqe_tail=%d sem=%d ring_len=%u", (int)atomic_load(marker(&r, 0)),
          (int)atomic_load(marker(&r, 1)), (int)atomic_load(marker(&r, 2)), (int)atomic_load(marker(&r, 3)), sem,
          r.ring_len);
  return 0;
}

static int push_sqe(const struct raw *r, int32_t index, uint64_t userdata) {
  uint32_t head = atomic_load(marker(r, 0)), next = (head + 1) % r->ring_len;
  if (head >= r->ring_len || next == atomic_load(marker(r, 1))) {
    return EAGAIN;
  }
  uint8_t *sqe = r->base + 16 + 80 * (size_t)r->ring_len + 16 * (size_t)head;
  memcpy(sqe, &index, sizeof(index));
  memcpy(sqe + 8, &userdata, sizeof(userdata));
  atomic_store(marker(r, 0), next);
  return 0;
}

static int do_raw_sqe(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  struct raw r;
  return raw_arg(argv[0], &r) ? push_sqe(&r, integer(argv[1]), (uint64_t)number(argv[2])) : USAGE;
}

static int do_raw_prep(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  struct raw r;
  int index = integer(argv[1]);
  if (!raw_arg(argv[0], &r) || index < 0 || (uint32_t)index >= r.ring_len) {
    return USAGE;
  }
  uint8_t *args = r.base + 16 + 56 * (size_t)index;
  const struct thing *v = find(IOV_KIND, argv[2]);
  if (v != NULL) {
    memcpy(args, v->iov.id, 16);
  } else {
    from_hex(argv[2], args, 16);
  }
  for (int i = 0; i < 5; i++) {
    uint64_t word = (uint64_t)number(argv[3 + i]); /* BUFOFF INO FILEOFF LEN USERDATA lie in this order */
    memcpy(args + 16 + 8 * i, &word, sizeof(word));
  }
  return push_sqe(&r, index, (uint64_t)number(argv[7]));
}

static int do_raw_reap(FILE *out, int argc, char **argv) {
  (void)argc;
  struct raw r;
  int max = integer(argv[1]), min = integer(argv[2]), n = 0;
  if (!raw_arg(argv[0], &r) || max < 1) {
    return USAGE;
  }
  struct hf3fs_cqe *cqes = calloc((size_t)max, sizeof(*cqes));
  if (cqes == NULL) {
    abort();
  }
  struct timespec deadline = in_ms(number(argv[3])), now;
  for (;;) {
    uint32_t head = atomic_load(marker(&r, 2)), tail = atomic_load(marker(&r, 3));
    while (n < max && tail < r.ring_len && tail != head) {
      memcpy(&cqes[n++], r.base + 16 + 56 * (size_t)r.ring_len + 24 * (size_t)tail, 24);
      tail = (tail + 1) % r.ring_len;
      atomic_store(marker(&r, 3), tail);
    }
    clock_gettime(CLOCK_REALTIME, &now);
    if (n >= min || now.tv_sec > deadline.tv_sec || (now.tv_sec == deadline.tv_sec && now.tv_nsec >= deadline.tv_nsec)) {
      break;
    }
    usleep(500);
  }
  print_cqes(out, cqes, n);
  free(cqes);
  return 0;
}

/* ---- the process ---- */

static int do_pid(FILE *out, int argc, char **argv) {
  (void)argc, (void)argv;
  fprintf(out, " pid=%d tid=%ld", (int)getpid(), syscall(SYS_gettid));
  return 0;
}

static int do_sleep(FILE *out, int argc, char **argv) {
  (void)out, (void)argc;
  long long ms = number(argv[0]);
  struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
  return 0;
}

static int do_env(FILE *out, int argc, char **argv) {
  (void)out;
  return (argc > 1 ? setenv(argv[0], argv[1], 1) : unsetenv(argv[0])) == 0 ? 0 : errno;
}

static char *answer(int argc, char **argv);

static void *task_main(void *arg) {
  struct task *t = arg;
  t->answer = answer(t->argc, t->argv);
  return NULL;
}

static int start_task(struct task *t, int argc, char **argv) {
  t->argc = argc;
  t->argv = calloc((size_t)argc + 1, sizeof(*t->argv));
  if (t->argv == NULL) {
    abort();
  }
  for (int i = 0; i < argc; i++) {
    t->argv[i] = strdup(argv[i]);
  }
  return pthread_create(&t->thread, NULL, task_main, t);
}

/* Passes the task's answer on: its text goes to out, its result is returned. */
static int finish_task(struct task *t, FILE *out) {
  pthread_join(t->thread, NULL);
  int code = 0;
  const char *text = t->answer + strlen("ok");
  if (strncmp(t->answer, "err ", 4) == 0) {
    char *end;
    code = (int)strtol(t->answer + 4, &end, 10);
    text = end;
  }
  fputs(text, out);
  for (int i = 0; i < t->argc; i++) {
    free(t->argv[i]);
  }
  free(t->argv);
  free(t->answer);
  memset(t, 0, sizeof(*t));
  return code;
}

static int do_thread(FILE *out, int argc, char **argv) {
  struct task t = {0};
  int err = start_task(&t, argc, argv);
  return err != 0 ? err : finish_task(&t, out);
}

static int do_spawn(FILE *out, int argc, char **argv) {
  (void)out;
  struct thing *t = find_or_make(TASK_KIND, argv[0]);
  return t->task.argv != NULL ? USAGE : start_task(&t->task, argc - 1, argv + 1);
}

static int do_join(FILE *out, int argc, char **argv) {
  (void)argc;
  struct thing *t = find(TASK_KIND, argv[0]);
  return t == NULL || t->task.argv == NULL ? USAGE : finish_task(&t->task, out);
}

static int do_fork_hold(FILE *out, int argc, char **argv) {
  bool leave = argc > 0 && strcmp(argv[0], "exit") == 0;
  int parent = (int)getpid();
  pid_t child = fork();
  if (child < 0) {
    return errno;
  }
  if (child == 0) {
    fprintf(out, " pid=%d parent=%d", (int)getpid(), parent);
    return 0;
  }
  int status = 0;
  if (!leave) {
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static int do_fork_idle(FILE *out, int argc, char **argv) {
  (void)argc, (void)argv;
  pid_t child = fork();
  if (child < 0) {
    return errno;
  }
  if (child == 0) {
    /* But not the pipes: a reader of our answers must not wait for this process. */
    int null_fd = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) {
      dup2(null_fd, fd);
    }
    for (;;) {
      pause();
    }
  }
  fprintf(out, " pid=%d", (int)child);
  return 0;
}

static int do_exit(FILE *out, int argc, char **argv) {
  (void)out;
  _exit(argc > 0 ? integer(argv[0]) : 0);
}

static int do_abort(FILE *out, int argc, char **argv) {
  (void)out, (void)argc, (void)argv;
  abort();
}

static int do_kill(FILE *out, int argc, char **argv) {
  (void)out, (void)argc, (void)argv;
  raise(SIGKILL);
  return 0;
}

static const struct command {
  const char *name;
  int (*run)(FILE *out, int argc, char **argv);
  int min_args, max_args;
} commands[] = {
    {"open", do_open, 3, 4},
    {"close", do_close, 1, 1},
    {"fstat", do_fstat, 1, 1},
    {"fsync", do_fsync, 1, 1},
    {"ftruncate", do_ftruncate, 2, 2},
    {"pwrite", do_pwrite, 4, 4},
    {"pread", do_pread, 3, 3},
    {"is_hf3fs", do_is_hf3fs, 1, 1},
    {"extract", do_extract, 1, 2},
    {"hardlink", do_hardlink, 2, 2},
    {"punchhole", do_punchhole, 2, MAX_ARGS},
    {"punchhole_n", do_punchhole_n, 2, 2},
    {"force_fsync", do_force_fsync, 1, 1},
    {"ioctl", do_ioctl, 2, 3},
    {"ioctl_ptr", do_ioctl_ptr, 3, 3},
    {"symlink", do_symlink, 2, 2},
    {"unlink", do_unlink, 1, 1},
    {"readlink", do_readlink, 1, 1},
    {"list", do_list, 1, 1},
    {"iovcreate", do_iovcreate, 5, 5},
    {"iovopen", do_iovopen, 6, 6},
    {"iovwrap", do_iovwrap, 7, 7},
    {"iovunlink", do_iovunlink, 1, 1},
    {"iovdestroy", do_iovdestroy, 1, 1},
    {"iovprobe", do_iovprobe, 1, 1},
    {"iovrenew", do_iovrenew, 1, 1},
    {"shm", do_shm, 3, 3},
    {"shm_unlink", do_shm_unlink, 1, 1},
    {"map", do_map, 4, 4},
    {"unmap", do_unmap, 1, 1},
    {"fill", do_fill, 4, 4},
    {"check", do_check, 4, 4},
    {"zero", do_zero, 3, 3},
    {"crc", do_crc, 3, 3},
    {"poke", do_poke, 3, 3},
    {"peek", do_peek, 3, 3},
    {"truncate_shm", do_truncate_shm, 2, 2},
    {"info", do_info, 1, 1},
    {"iorcreate", do_iorcreate, 6, 6},
    {"iorcreate2", do_iorcreate2, 7, 7},
    {"iorcreate3", do_iorcreate3, 8, 8},
    {"iorcreate4", do_iorcreate4, 8, 8},
    {"iordestroy", do_iordestroy, 1, 1},
    {"iorprobe", do_iorprobe, 1, 1},
    {"iorrenew", do_iorrenew, 1, 1},
    {"entries", do_entries, 1, 1},
    {"iorsize", do_iorsize, 1, 1},
    {"reg", do_reg, 1, 2},
    {"dereg", do_dereg, 1, 1},
    {"prep", do_prep, 8, 8},
    {"prep_many", do_prep_many, 9, 9},
    {"submit", do_submit, 1, 1},
    {"wait", do_wait, 4, 4},
    {"markers", do_markers, 1, 1},
    {"raw_prep", do_raw_prep, 8, 8},
    {"raw_sqe", do_raw_sqe, 3, 3},
    {"raw_reap", do_raw_reap, 4, 4},
    {"pid", do_pid, 0, 0},
    {"sleep", do_sleep, 1, 1},
    {"env", do_env, 1, 2},
    {"thread", do_thread, 1, MAX_ARGS},
    {"spawn", do_spawn, 2, MAX_ARGS},
    {"join", do_join, 1, 1},
    {"fork_hold", do_fork_hold, 0, 1},
    {"fork_idle", do_fork_idle, 0, 0},
    {"exit", do_exit, 0, 1},
    {"abort", do_abort, 0, 0},
    {"kill", do_kill, 0, 0},
};

static int dispatch(FILE *out, int argc, char **argv) {
  for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
    const struct command *c = &commands[i];
    if (strcmp(argv[0], c->name) == 0) {
      if (argc - 1 < c->min_args || argc - 1 > c->max_args) {
        break;
      }
      return c->run(out, argc - 1, argv + 1);
    }
  }
  fprintf(out, " bad command or wrong number of arguments: %s", argv[0]);
  return USAGE;
}

/* The whole answer, to free. */
static char *answer(int argc, char **argv) {
  char *text = NULL, *line = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (out == NULL) {
    abort();
  }
  int code = dispatch(out, argc, argv);
  fclose(out);
  int n = code == 0 ? asprintf(&line, "ok%s", text) : asprintf(&line, "err %d%s", code, text);
  if (n < 0) {
    abort();
  }
  free(text);
  return line;
}

int main(void) {
  char *line = NULL;
  size_t capacity = 0;
  static char *argv[MAX_ARGS + 1];
  while (getline(&line, &capacity, stdin) > 0) {
    int argc = 0;
    char *rest = NULL;
    for (char *a = strtok_r(line, " \t\r\n", &rest); a != NULL && argc < MAX_ARGS; a = strtok_r(NULL, " \t\r\n", &rest)) {
      argv[argc++] = a;
    }
    if (argc == 0 || argv[0][0] == '#') {
      continue;
    }
    char *text = answer(argc, argv);
    puts(text);
    fflush(stdout);
    free(text);
  }
  return 0;
}
