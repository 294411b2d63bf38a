// SPDX-License-Identifier: Apache-2.0

// How a C++ program uses the header: first, alone, and with the same layout.

#include "hf3fs_usrbio.h"

static_assert(sizeof(hf3fs_iov) == 312 && offsetof(hf3fs_iov, numa) == 304, "hf3fs_iov");
static_assert(sizeof(hf3fs_ior) == 600 && offsetof(hf3fs_ior, flags) == 592, "hf3fs_ior");
static_assert(sizeof(hf3fs_cqe) == 24 && offsetof(hf3fs_cqe, userdata) == 16, "hf3fs_cqe");
static_assert(HF3FS_SUPER_MAGIC == 0x8f3f5fff, "magic");

int (*const prep)(const hf3fs_ior *, const hf3fs_iov *, bool, void *, int, size_t, uint64_t, const void *) =
    &hf3fs_prep_io;
int (*const wait)(const hf3fs_ior *, hf3fs_cqe *, int, int, const timespec *) = &hf3fs_wait_for_ios;
