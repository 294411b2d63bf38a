package sharing

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// A file system that has connected anew breaks the descriptors that it knew before: EBADFD on GlusterFS, EBADF on CephFS. The
// daemon opens the file again, for rings and for all who have it open.
func TestBrokenDescriptors(t *testing.T) {
	daemontest.NeedRoot(t)
	ctx := t.Context()
	d := faultdir.New(t)
	k := daemontest.ServeWith(t, daemontest.Options{Data: d.Path, Flags: []string{
		"--shared", "on", "--pages-listen", "off", "--deadline", "1m", "--attr-timeout", "0s", "--entry-timeout", "0s", "--negative-timeout", "0s"}})
	path := filepath.Join(k.Mount, "file")
	if err := os.WriteFile(path, make([]byte, 8192), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	read, write := newRing(t, k.Mount, f, false), newRing(t, k.Mount, f, true)
	buf := make([]byte, 4096)
	uses := []struct {
		what string
		call func() error
	}{
		{"read", func() error { _, err := f.ReadAt(buf, 0); return err }},
		{"unaligned read", func() error { _, err := f.ReadAt(buf[:10], 10); return err }},
		{"write", func() error { _, err := f.WriteAt(buf, 0); return err }},
		{"unaligned write", func() error { _, err := f.WriteAt(buf[:10], 10); return err }},
		{"open for reading and read", func() error { _, err := os.ReadFile(path); return err }},
		{"truncate", func() error { return os.Truncate(path, 8192) }},
		{"a ring's read", func() error { return read.do(ctx) }},
		{"a ring's write", func() error { return write.do(ctx) }},
	}
	for _, u := range uses { // with all descriptors that there may be
		if err := u.call(); err != nil {
			t.Fatalf("%s: %v", u.what, err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	for _, errno := range []syscall.Errno{unix.EBADFD, unix.EBADF, unix.ESTALE} {
		for _, u := range uses {
			d.Break(errno)
			if err := u.call(); err != nil {
				t.Errorf("the descriptors answer %v: %s: %v", errno, u.what, err)
			}
		}
		_ = f.Sync()
		if _, err := f.WriteAt(buf, 0); err != nil {
			t.Error(err)
		}
		d.Break(errno)
		if err := f.Sync(); err == nil {
			t.Errorf("the descriptors answer %v, and a sync of what was written through them has no error", errno)
		}
		if err := f.Sync(); err != nil && !errors.Is(err, unix.EIO) {
			t.Error(err)
		}
		if err := f.Sync(); err != nil {
			t.Errorf("there is nothing to sync: %v", err)
		}
	}
	// What was written through a descriptor that broke before it was synced may be lost: somebody must hear of it.
	if _, err := f.WriteAt(buf, 0); err != nil {
		t.Error(err)
	}
	d.Break(unix.EBADFD)
	if _, err := f.WriteAt(buf, 4096); err != nil {
		t.Error(err)
	}
	if err := f.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("a sync after what was written may be lost: %v, want EIO", err)
	}

	// Another host removes the file, and puts another one in its place: the descriptors are of no use, and opens find the new one.
	fresh := filepath.Join(d.Beneath, "fresh")
	if err := errors.Join(os.WriteFile(fresh, []byte("new"), 0o644), os.Rename(fresh, filepath.Join(d.Beneath, "file"))); err != nil {
		t.Fatal(err)
	}
	d.Break(unix.ESTALE)
	if err := read.do(ctx); err != unix.ESTALE {
		t.Errorf("a ring's read of a file that is gone: %v", err)
	}
	if _, err := f.ReadAt(buf, 0); !errors.Is(err, unix.ESTALE) {
		t.Errorf("a read of a file that is gone: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "new" {
		t.Errorf("the name of a file that was replaced: %q, %v", got, err)
	}
}
