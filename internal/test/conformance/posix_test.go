package conformance

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// beyond3FS is case 76: of what 3FS refuses, that which programs expect of a directory.
func beyond3FS(t *testing.T, w *world) {
	dir := w.dir(t)
	f, err := os.Create(dir + "/f")
	must(t, err)
	defer f.Close()
	for _, mode := range []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE} {
		if err := unix.Fallocate(int(f.Fd()), mode, 0, 4096); err != nil {
			t.Errorf("fallocate %#x: %v", mode, err)
		}
	}
	wantErrno(t, "mkfifo", unix.Mkfifo(dir+"/p", 0o644), syscall.ENOSYS)
	wantErrno(t, "mknod", unix.Mknod(dir+"/n", unix.S_IFSOCK|0o644, 0), syscall.ENOSYS)
	write(t, dir+"/e", []byte("exchanged"))
	rename := func(to string, flags uint) error {
		return unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, dir+to, flags)
	}
	wantErrno(t, "a name that is taken", rename("/e", unix.RENAME_NOREPLACE), syscall.EEXIST)
	must(t, rename("/e", unix.RENAME_EXCHANGE))
	if b, err := os.ReadFile(f.Name()); string(b) != "exchanged" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	must(t, rename("/g", unix.RENAME_NOREPLACE))
	wantGone(t, f.Name())
	if out, err := shell(t, fmt.Sprintf("mv -n %s/g %s/h && mv -n %s/h %s/e", dir, dir, dir, dir)); err != nil {
		t.Logf("mv -n to a name that is taken: %v: %s", err, out)
	}
	wantThere(t, dir+"/h")
	wantSize(t, dir+"/e", 4096)
}
