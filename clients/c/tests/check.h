/* SPDX-License-Identifier: Apache-2.0 */

/* Checks for C tests: compare, print the location, stop. */

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                      \
  do {                                                                   \
    if (!(cond)) {                                                       \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #cond); \
      exit(1);                                                           \
    }                                                                    \
  } while (0)

#define CHECK_EQ(got, want)                                                                                  \
  do {                                                                                                       \
    long long got_ = (long long)(got), want_ = (long long)(want);                                            \
    if (got_ != want_) {                                                                                     \
      fprintf(stderr, "%s:%d: %s is %lld, want %lld\n", __FILE__, __LINE__, #got, got_, want_);              \
      exit(1);                                                                                               \
    }                                                                                                        \
  } while (0)

#define CHECK_STR(got, want)                                                                                 \
  do {                                                                                                       \
    const char *got_ = (got), *want_ = (want);                                                               \
    if (got_ == NULL || strcmp(got_, want_) != 0) {                                                          \
      fprintf(stderr, "%s:%d: %s is \"%s\", want \"%s\"\n", __FILE__, __LINE__, #got, got_ ? got_ : "(null)", want_); \
      exit(1);                                                                                               \
    }                                                                                                        \
  } while (0)

#endif
