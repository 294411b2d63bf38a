package conformance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// The beginning of every script: a file of 100 bytes, a buffer and a ring.
const pythonPreamble = `
import errno, os, sys, time
from multiprocessing.shared_memory import SharedMemory
from hf3fs_fuse import io

path = sys.argv[1]
mount = io.extract_mount_point(path)
fd = os.open(path, os.O_RDONLY)
io.register_fd(fd)
shm = SharedMemory(create=True, size=4096)
iov = io.make_iovec(shm, mount)
shm.unlink()
ring = io.make_ioring(mount, 4)
`

const pythonEnd = `
del ring, iov
io.deregister_fd(fd)
os.close(fd)
shm.close()
`

const pythonEmptySliceAndIdleWait = `
try:
    ring.prepare(iov[:0], True, fd, 0)
except OSError as error:
    assert error.errno == errno.EINVAL, error
else:
    raise AssertionError("an empty slice was accepted")
assert ring.wait(min_results=1, timeout=1.0) == []
began = time.monotonic()
assert ring.wait(min_results=1, timeout=1) == []
assert 0.9 < time.monotonic() - began < 5
`

const pythonPriorityInName = `
def names():
    return set(os.listdir(os.path.join(mount, "3fs-virt", "iovs")))

before = names()
high = io.make_ioring(mount, 4, priority=io.IorPriority.HIGH)
[name] = names() - before
assert name.split(".")[1:] == ["r0", "t0"], name
`

const pythonSliceOfSlice = `
part = iov[512:1024][0:100]
ring.prepare(part, True, fd, 0, "mark")
[done] = ring.submit().wait(min_results=1, timeout=30)
assert done is part
assert (done.base_off, done.result, done.userdata) == (512, 100, "mark"), done
assert bytes(shm.buf[512:612]) == os.pread(fd, 100, 0)
assert bytes(shm.buf[:512]) == bytes(512)
del done, part
`

// throughPython runs a script with the Python package over the C library of this tree.
func throughPython(script string) ways {
	return way("python", func(t *testing.T) {
		w := shared(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		cmd := python(ctx, t, script, write(t, w.dir(t)+"/f", pattern(100, 3)))
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// python returns a command that runs a script with the Python package over the C library of this tree, on a file of the mount.
func python(ctx context.Context, t *testing.T, script, path string) *exec.Cmd {
	t.Helper()
	if err := exec.Command("python3", "-c", "import ctypes, sys; sys.exit(sys.version_info < (3, 9))").Run(); err != nil {
		daemontest.NotTested(t, "it takes python3, 3.9 or later: "+err.Error())
	}
	source, err := filepath.Abs(repository + "/clients/python/src")
	must(t, err)
	cmd := exec.CommandContext(ctx, "python3", "-W", "error", "-c", pythonPreamble+script+pythonEnd, path)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(),
		"PYTHONPATH="+source,
		"PYTHONDONTWRITEBYTECODE=1",
		"HF3FS_USRBIO_LIBRARY="+filepath.Join(filepath.Dir(usrbioTool(t)), "libhf3fs_api_shared.so"))
	return cmd
}
