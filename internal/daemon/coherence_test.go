package daemon

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/usagemodel"
	"github.com/kv3fs/kv3fs/usrbio"
)

// shows returns what a mapping of a file of the mount shows. A system call copies it: for a page that is missing the
// kernel asks the daemon, which is in this process. A fault of Go code would keep its P for that long, so a garbage
// collection that begins meanwhile would wait for it, and the daemon for the collection, for ever.
func shows(t *testing.T, mapping []byte) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(path, mapping, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// With a limit, writes go to the daemon and mappings and readers to the kernel. All of them see
// the same bytes at once, whichever way these were written.
func TestLimitKeepsCoherence(t *testing.T) {
	const size = 64 << 10
	for name, pass := range passthroughs {
		t.Run(name, func(t *testing.T) {
			model := usagemodel.New(t)
			model.Capacity = 1 << 30
			data, mount, stop := daemonWith(t, model, pass)
			t.Cleanup(stop)
			c := newUsageClient(t, mount)
			defer c.close()
			path := filepath.Join(mount, "f")
			open := func(path string, flags int) *os.File {
				t.Helper()
				f, err := os.OpenFile(path, flags, 0o644)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { f.Close() })
				return f
			}
			f := open(path, os.O_CREATE|os.O_RDWR)
			reader := open(path, os.O_RDONLY)
			appender := open(path, os.O_WRONLY|os.O_APPEND)
			direct := open(path, os.O_RDWR|unix.O_DIRECT)
			source := open(filepath.Join(mount, "source"), os.O_CREATE|os.O_RDWR)
			file, err := c.m.Register(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close(context.Background())

			content := bytes.Repeat([]byte{'0'}, size)
			if _, err := f.WriteAt(content, 0); err != nil {
				t.Fatal(err)
			}
			shared, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil && (err != syscall.ENODEV || pass == passthroughs["passthrough"]) {
				t.Fatal(err)
			}
			private, err := unix.Mmap(int(reader.Fd()), 0, size, unix.PROT_READ, unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Munmap(private) })
			if shared != nil {
				t.Cleanup(func() { unix.Munmap(shared) })
			}
			same := func(how string) {
				t.Helper()
				got := make([]byte, len(content)+1)
				for where, r := range map[string]*os.File{"the reader": reader, "the writer": f, "the data directory": open(filepath.Join(data, "f"), os.O_RDONLY)} {
					if n, _ := r.ReadAt(got, 0); !bytes.Equal(got[:n], content) {
						t.Errorf("after %s: %s sees other bytes", how, where)
					}
				}
				q := []usrbio.Request{{File: file, Iov: c.iov, Bytes: int64(len(content)) + 1}}
				if err := c.read.Do(t.Context(), q); err != nil || !bytes.Equal(c.iov.Bytes()[:max(q[0].Result, 0)], content) {
					t.Errorf("after %s: a ring sees other bytes: %d, %v", how, q[0].Result, err)
				}
				if !bytes.Equal(shows(t, private), content[:size]) || shared != nil && !bytes.Equal(shows(t, shared), content[:size]) {
					t.Errorf("after %s: a mapping shows other bytes", how)
				}
				if st, err := os.Stat(path); err != nil || st.Size() != int64(len(content)) {
					t.Errorf("after %s: stat says %v, %v", how, st.Size(), err)
				}
			}
			same("the first write")
			piece := func(letter byte) []byte { return bytes.Repeat([]byte{letter}, 4096) }
			steps := []struct {
				how string
				do  func(off int64) (int, error)
			}{
				{"pwrite", func(off int64) (int, error) { return f.WriteAt(piece('p'), off) }},
				{"an append", func(int64) (int, error) { return appender.Write(piece('a')) }},
				{"direct I/O", func(off int64) (int, error) {
					b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
					if err != nil {
						return 0, err
					}
					defer unix.Munmap(b)
					copy(b, piece('d'))
					return direct.WriteAt(b, off)
				}},
				{"copy_file_range", func(off int64) (int, error) {
					if _, err := source.WriteAt(piece('c'), 0); err != nil {
						return 0, err
					}
					return unix.CopyFileRange(int(source.Fd()), ptr(0), int(f.Fd()), &off, 4096, 0)
				}},
				{"sendfile", func(off int64) (int, error) {
					if _, err := source.WriteAt(piece('s'), 0); err != nil {
						return 0, err
					}
					if _, err := f.Seek(off, 0); err != nil {
						return 0, err
					}
					return unix.Sendfile(int(f.Fd()), int(source.Fd()), ptr(0), 4096)
				}},
				{"a ring", func(off int64) (int, error) {
					copy(c.iov.Bytes(), piece('r'))
					q := []usrbio.Request{{File: file, FileOffset: off, Iov: c.iov, Bytes: 4096}}
					err := c.wr.Do(t.Context(), q)
					return int(q[0].Result), err
				}},
				{"a mapping", func(off int64) (int, error) {
					if shared == nil {
						return f.WriteAt(piece('m'), off)
					}
					return copy(shared[off:], piece('m')), nil
				}},
			}
			letters := "padcsrm" // what each of them writes
			for i, s := range steps {
				off := int64(i) * 4096
				if n, err := s.do(off); n != 4096 || err != nil {
					t.Fatalf("%s: %d, %v", s.how, n, err)
				}
				if s.how == "an append" {
					content = append(content, piece('a')...)
				} else {
					copy(content[off:], piece(letters[i]))
				}
				same(s.how)
			}
		})
	}
}
