/* SPDX-License-Identifier: Apache-2.0 */

/* The layouts that existing programs and ctypes declarations depend on. */

#include "hf3fs_usrbio.h"

#define AT(type, field, offset) _Static_assert(offsetof(struct type, field) == (offset), #type "." #field)

_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "the ring ABI exists for 64-bit programs only");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the ring ABI is little-endian");

_Static_assert(sizeof(struct hf3fs_iov) == 312, "hf3fs_iov");
AT(hf3fs_iov, base, 0);
AT(hf3fs_iov, iovh, 8);
AT(hf3fs_iov, id, 16);
AT(hf3fs_iov, mount_point, 32);
AT(hf3fs_iov, size, 288);
AT(hf3fs_iov, block_size, 296);
AT(hf3fs_iov, numa, 304);

_Static_assert(sizeof(struct hf3fs_ior) == 600, "hf3fs_ior");
AT(hf3fs_ior, iov, 0);
AT(hf3fs_ior, iorh, 312);
AT(hf3fs_ior, mount_point, 320);
AT(hf3fs_ior, for_read, 576);
AT(hf3fs_ior, io_depth, 580);
AT(hf3fs_ior, priority, 584);
AT(hf3fs_ior, timeout, 588);
AT(hf3fs_ior, flags, 592);

_Static_assert(sizeof(struct hf3fs_cqe) == 24, "hf3fs_cqe");
AT(hf3fs_cqe, index, 0);
AT(hf3fs_cqe, reserved, 4);
AT(hf3fs_cqe, result, 8);
AT(hf3fs_cqe, userdata, 16);
