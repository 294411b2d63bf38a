package fuseserver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// What clients have just looked up is gone for all of their calls once it is evicted, and can
// be made anew.
func TestEvicted(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		for name, call := range map[string]func(path string) error{
			"stat":        func(path string) error { _, err := os.Stat(path); return err },
			"open":        func(path string) error { _, err := os.Open(path); return err },
			"open to add": func(path string) error { _, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0); return err },
			"remove":      func(path string) error { return unix.Unlink(path) },
			"chmod":       func(path string) error { return unix.Chmod(path, 0o600) },
			"truncate":    func(path string) error { return unix.Truncate(path, 1) },
			"link":        func(path string) error { return unix.Link(path, path+".link") },
			"rename":      func(path string) error { return unix.Rename(path, path+".new") },
		} {
			path := w.write("f", "old")
			w.want("f", "old")
			w.evict("f")
			err := call(path)
			if pe, ok := err.(*os.PathError); ok {
				err = pe.Err
			}
			if err != unix.ENOENT {
				t.Errorf("%s: %v", name, err)
			}
			os.Remove(path)
		}
		for name, flags := range map[string]int{"": os.O_RDWR, "whole": os.O_TRUNC | os.O_WRONLY, "alone": os.O_EXCL | os.O_WRONLY} {
			path := w.write("f", "old")
			w.want("f", "old")
			w.evict("f")
			f, err := os.OpenFile(path, flags|os.O_CREATE, 0o644)
			if err != nil {
				t.Errorf("create anew %s: %v", name, err)
				continue
			}
			if _, err := f.Write([]byte("new")); err != nil {
				t.Error(err)
			}
			f.Close()
			w.want("f", "new")
			os.Remove(path)
		}
		path := w.write("f", "old")
		w.evict("f")
		if err := os.Rename(w.write("g", "other"), path); err != nil {
			t.Errorf("rename over it: %v", err)
		}
		w.want("f", "other")
	})
}

func (w *world) evict(name string) {
	w.t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, filepath.Join(w.data, name), 0, unix.STATX_BASIC_STATS, &st); err != nil {
		w.t.Fatal(err)
	}
	want := tree.Victim{
		Key:       tree.FileKey{Dev: uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), Ino: st.Ino},
		SizeBytes: int64(st.Size), MtimeNs: st.Mtime.Sec*1e9 + int64(st.Mtime.Nsec),
	}
	// The kernel says that a file is closed when it likes.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		switch err := w.tree.Evict(".", name, want); {
		case err == nil:
			return
		case err != unix.EBUSY || time.Now().After(end):
			w.t.Fatalf("evict %s: %v", name, err)
		}
	}
}
