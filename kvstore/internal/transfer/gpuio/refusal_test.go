package gpuio

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// An error of one buffer, when it is registered or when it is moved, sends that one through host
// memory. Others stay direct, and it is said once.
func TestBufferThatIsRefused(t *testing.T) {
	for _, when := range []string{"register", "move"} {
		for _, code := range []int{device.DirectMappingSize, device.DirectPinning, device.DirectPointer} {
			t.Run(when, func(t *testing.T) {
				var log bytes.Buffer
				a := newAccelerator()
				good, bad, worse := a.Wrap(pattern(8192)), a.Wrap(pattern(8192)), a.Wrap(pattern(8192))
				a.refuse = func(call string, b *device.Buffer) error {
					if call == when && b != good {
						return &device.DirectError{Call: call, Code: code}
					}
					return nil
				}
				m := New(Options{Device: a, Direct: true, BufferBytes: 1 << 20, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				f := m.Open(openFile(t, os.O_RDWR))
				for range mostRefusals + 1 {
					for _, b := range []*device.Buffer{bad, good, worse} {
						at := b.At(0)
						for _, write := range []bool{true, false} {
							if n, err := f.Move(transfer.Op{Device: &at, Bytes: 8192, Write: write}); n != 8192 || err != nil {
								t.Fatalf("moved %d: %v", n, err)
							}
						}
						if !bytes.Equal(b.Bytes(), pattern(8192)) {
							t.Error("other bytes were read")
						}
					}
				}
				const good8K = (mostRefusals + 1) * 8192
				if !m.Direct() || a.written != good8K || a.read != good8K {
					t.Errorf("direct transfers: %t, read %d and wrote %d so", m.Direct(), a.read, a.written)
				}
				if got, want := m.Transfers(), (kv.DeviceTransfers{DirectBytes: 2 * good8K, RefusedBuffers: 2}); got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
				if n := strings.Count(log.String(), "no direct transfers of some"); n != 1 || strings.Count(log.String(), "\n") != 1 {
					t.Errorf("log: %s", log.String())
				}
				if err := errors.Join(f.Close(), m.Close()); err != nil || a.unregistered != a.registered {
					t.Errorf("registered %d times and unregistered %d: %v", a.registered, a.unregistered, err)
				}
			})
		}
	}
}

// Where the file system refuses aligned direct I/O because its sectors are larger, the page cache
// is used, of device memory with and without direct transfers, and it is said once.
func TestLargerSectors(t *testing.T) {
	for name, direct := range map[string]bool{"through host memory": false, "direct transfers": true} {
		t.Run(name, func(t *testing.T) {
			file := &picky{}
			dir := mountPicky(t, file)
			var log bytes.Buffer
			a := newAccelerator()
			m := New(Options{Device: a, Direct: direct, DirectIO: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			want := pattern(2*stageBytes + 4096)
			at, back := a.Wrap(want).At(0), a.Wrap(make([]byte, len(want))).At(0)
			bypassing := func() posix.DeviceFile { return m.Open(reopened(t, filepath.Join(dir, "f"), os.O_RDWR|unix.O_DIRECT)) }
			first, second := bypassing(), bypassing()
			closing(t, m, closers{first, second})
			for _, f := range []posix.DeviceFile{first, second} {
				for _, op := range []transfer.Op{{Device: &at, Write: true}, {Device: &back}} {
					op.Bytes = len(want)
					if n, err := f.Move(op); n != len(want) || err != nil {
						t.Fatalf("moved %d, write %t: %v", n, op.Write, err)
					}
				}
				if !bytes.Equal(back.Buffer.Bytes(), want) {
					t.Error("other bytes were read")
				}
				clear(back.Buffer.Bytes())
			}
			if got := m.Transfers(); got != (kv.DeviceTransfers{Buffered: 12}) {
				t.Errorf("%+v, want 12 transfers through the page cache", got)
			}
			lines, refused := 1, int64(1)
			if direct { // which are refused, and end, as well
				lines, refused = 2, 2
			}
			if strings.Count(log.String(), "using the page cache") != 1 || strings.Count(log.String(), "\n") != lines {
				t.Errorf("log: %s", log.String())
			}
			if n := file.refused.Load(); n != refused {
				t.Errorf("%d calls past the page cache, want %d", n, refused)
			}
		})
	}
}

// A file system that cannot bypass the page cache is left to the device, which may do without.
func TestNoDirectIO(t *testing.T) {
	dir := mountPicky(t, &picky{noDirect: true})
	a := newAccelerator()
	m := New(Options{Device: a, Direct: true, DirectIO: true})
	f := m.Open(reopened(t, filepath.Join(dir, "f"), os.O_RDWR))
	closing(t, m, f)
	at := a.Wrap(pattern(8192)).At(0)
	if n, err := f.Move(transfer.Op{Device: &at, Bytes: 8192, Write: true}); n != 8192 || err != nil {
		t.Fatalf("moved %d: %v", n, err)
	}
	if got := m.Transfers(); got != (kv.DeviceTransfers{DirectBytes: 8192}) {
		t.Errorf("%+v", got)
	}
}

// EINVAL of a file that uses the page cache is its error.
func TestErrorsOfThePageCache(t *testing.T) {
	a := newAccelerator()
	m := New(Options{Device: a})
	f := m.Open(openFile(t, os.O_RDWR))
	closing(t, m, f)
	at := a.Wrap(pattern(4096)).At(0)
	if _, err := f.Move(transfer.Op{Device: &at, Bytes: 4096, Offset: 1<<63 - 4096, Write: true}); err == nil {
		t.Error("wrote beyond what a file can hold")
	}
	if got := m.Transfers(); got != (kv.DeviceTransfers{}) {
		t.Errorf("%+v", got)
	}
}

// picky is a file that answers EINVAL to reads and writes past the page cache, as one does on a
// device whose sectors are larger than what it is given.
type picky struct {
	fs.Inode
	noDirect bool // open says so
	refused  atomic.Int64

	mu   sync.Mutex
	data []byte
}

type pickyHandle struct{ direct bool }

var (
	_ fs.NodeOpener = (*picky)(nil)
	_ fs.NodeReader = (*picky)(nil)
	_ fs.NodeWriter = (*picky)(nil)
)

func (p *picky) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if p.noDirect && flags&unix.O_DIRECT != 0 {
		return nil, 0, syscall.EINVAL
	}
	return &pickyHandle{flags&unix.O_DIRECT != 0}, fuse.FOPEN_DIRECT_IO, fs.OK
}

func (p *picky) Read(_ context.Context, h fs.FileHandle, dest []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	if h.(*pickyHandle).direct {
		p.refused.Add(1)
		return nil, syscall.EINVAL
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return fuse.ReadResultData(dest[:copy(dest, p.data[min(offset, int64(len(p.data))):])]), fs.OK
}

func (p *picky) Write(_ context.Context, h fs.FileHandle, data []byte, offset int64) (uint32, syscall.Errno) {
	if h.(*pickyHandle).direct {
		p.refused.Add(1)
		return 0, syscall.EINVAL
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if end := int(offset) + len(data); end > len(p.data) {
		p.data = append(p.data, make([]byte, end-len(p.data))...)
	}
	return uint32(copy(p.data[offset:], data)), fs.OK
}

// mountPicky mounts a file system whose file f is picky, until the test ends.
func mountPicky(t *testing.T, file *picky) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := &fs.Inode{}
	server, err := fs.Mount(dir, root, &fs.Options{
		// Without splicing, for which go-fuse keeps pipes for the life of the process.
		MountOptions: fuse.MountOptions{DirectMount: os.Geteuid() == 0, DisableSplice: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild("f", root.NewPersistentInode(ctx, file, fs.StableAttr{Mode: fuse.S_IFREG}), true)
		},
	})
	if err != nil {
		if os.Getenv("KV3FS_REQUIRE_MOUNTS") != "" {
			t.Fatal(err)
		}
		t.Skipf("no FUSE here: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}
