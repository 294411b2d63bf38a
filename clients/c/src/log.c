/* SPDX-License-Identifier: Apache-2.0 */

#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum usrbio_log_level threshold = USRBIO_WARN;

enum usrbio_log_level usrbio_log_level_of(const char *name) {
  static const struct {
    const char *prefix;
    enum usrbio_log_level level;
  } levels[] = {
      {"DBG", USRBIO_DEBUG},   {"DEBUG", USRBIO_DEBUG},     {"INFO", USRBIO_INFO},
      {"ERR", USRBIO_ERROR},   {"CRITICAL", USRBIO_SILENT}, {"FATAL", USRBIO_SILENT},
  };
  for (size_t i = 0; name != NULL && i < sizeof(levels) / sizeof(levels[0]); i++) {
    if (strncmp(name, levels[i].prefix, strlen(levels[i].prefix)) == 0) {
      return levels[i].level;
    }
  }
  return USRBIO_WARN;
}

/* Read once, at load: a level that changes while threads log would need a lock. */
__attribute__((constructor)) static void read_level(void) {
  threshold = usrbio_log_level_of(getenv("HF3FS_USRBIO_LIB_LOG"));
}

void usrbio_log(enum usrbio_log_level level, const char *format, ...) {
  if (level < threshold) {
    return;
  }
  int saved = errno;
  char line[1024] = "hf3fs_usrbio: ";
  size_t used = strlen(line);
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line + used, sizeof(line) - used - 1, format, args);
  va_end(args);
  if (n >= 0) {
    used = strlen(line);
    line[used++] = '\n';
    /* One write, so that the lines of several threads do not mix. */
    ssize_t ignored = write(STDERR_FILENO, line, used);
    (void)ignored;
  }
  errno = saved;
}
