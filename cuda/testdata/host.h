// What the tests see of hostcuda.c and hostcufile.c besides NVIDIA's interface.
#include "abi.h"

// Calls of CUDA's that a program makes beside package cuda.
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context);

// hostcuda_set sets what goes wrong, by name: delay_us, hang, fail_copies and lose_copies (how
// many; what is lost seems to succeed), fail_next (the number that the next call fails with that
// needs a context), fail_init (the number that cuInit fails with), dead.
void hostcuda_set(const char *what, long value);

// hostcuda_get returns how much of something there is: violations, ranges, depth (of the calling
// thread's stack of contexts).
long hostcuda_get(const char *what);

// hostcuda_host returns the host memory that stands for device memory, and 0 unless this thread
// has the context of the device.
char *hostcuda_host(CUdeviceptr at, size_t size);

// hostcufile_set sets what goes wrong, by name: the number that a call fails with, or the most
// that one call moves.
void hostcufile_set(const char *what, long value);
long hostcufile_handles(void);
