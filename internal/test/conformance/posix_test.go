package conformance

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// notSupported is case 76: what 3FS does not support fails with the same errno.
func notSupported(t *testing.T, w *world) {
	dir := w.dir(t)
	f, err := os.Create(dir + "/f")
	must(t, err)
	defer f.Close()
	for _, mode := range []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE} {
		wantErrno(t, fmt.Sprint("fallocate ", mode), unix.Fallocate(int(f.Fd()), mode, 0, 4096), syscall.EOPNOTSUPP)
	}
	wantErrno(t, "mkfifo", unix.Mkfifo(dir+"/p", 0o644), syscall.ENOSYS)
	wantErrno(t, "mknod", unix.Mknod(dir+"/n", unix.S_IFSOCK|0o644, 0), syscall.ENOSYS)
	write(t, dir+"/e", nil)
	for to, flags := range map[string]uint{"/g": unix.RENAME_NOREPLACE, "/e": unix.RENAME_EXCHANGE} {
		wantErrno(t, "renameat2", unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, dir+to, flags), syscall.EINVAL)
	}
	wantThere(t, f.Name())
	if out, err := shell(t, fmt.Sprintf("mv -n %s/f %s/g", dir, dir)); err != nil { // mv falls back
		t.Errorf("%v: %s", err, out)
	}
	wantThere(t, dir+"/g")
}
