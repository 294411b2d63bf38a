package sharing

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// A truncation hangs, and its client is told that it failed. It may come yet, so until then rings may not use the file: what they wrote would be cut
// off, and what was written behind it later would have zeros before it.
func TestRingsBesideALateTruncation(t *testing.T) {
	daemontest.NeedRoot(t)
	d := faultdir.New(t)
	k := daemontest.ServeWith(t, daemontest.Options{Data: d.Path, Flags: []string{"--shared", "on", "--pages-listen", "off", "--deadline", "1s"}})
	open := func(name string) *os.File {
		path := filepath.Join(k.Mount, name)
		if err := os.WriteFile(path, make([]byte, 8192), 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	f, other := open("file"), open("other")
	read, write, elsewhere := newRing(t, k.Mount, f, false), newRing(t, k.Mount, f, true), newRing(t, k.Mount, other, false)
	eventually(t, "rings use the file", func() bool { return read.do(t.Context()) == nil && write.do(t.Context()) == nil })
	hangs := d.Hang(func(c faultdir.Call) bool { return c.Op == "setattr" })
	told := make(chan error, 1)
	go func() { told <- f.Truncate(4096) }()
	hung(t, hangs)
	select {
	case err := <-told:
		if !errors.Is(err, unix.EIO) {
			t.Errorf("the truncation: %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the truncation is not answered")
	}
	for what, r := range map[string]*ring{"read": read, "write": write} {
		eventually(t, "a ring's "+what+" of a file that may be shortened yet answers EIO", func() bool {
			err := r.do(t.Context())
			if err != syscall.EIO && err != syscall.ETIMEDOUT { // the latter where this machine stands still
				t.Fatalf("a ring's %s of a file that may be shortened yet: %v, want EIO", what, err)
			}
			return err == syscall.EIO
		})
	}
	eventually(t, "a ring's read of another file", func() bool { return elsewhere.do(t.Context()) == nil })
	d.Heal()
	eventually(t, "rings use the file again", func() bool { return read.do(t.Context()) == nil && write.do(t.Context()) == nil })
}
