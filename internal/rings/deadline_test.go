package rings

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// hangingFile is a file on a file system that stops answering: its reads wait
// for release. With direct, the kernel pins the reader's pages at once and fills
// them late, like a device; otherwise it copies to the reader's address late.
type hangingFile struct {
	fs.Inode
	direct  bool
	release chan struct{}
}

const hangingBytes = 1 << 20

func (h *hangingFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Size = hangingBytes
	return 0
}

func (h *hangingFile) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if h.direct {
		return nil, fuse.FOPEN_DIRECT_IO, 0
	}
	return nil, 0, 0
}

func (h *hangingFile) Read(_ context.Context, _ fs.FileHandle, dest []byte, _ int64) (fuse.ReadResult, syscall.Errno) {
	<-h.release
	return fuse.ReadResultData(bytes.Repeat([]byte{'x'}, len(dest))), 0
}

// hanging mounts file systems with one hanging file each and lends the files.
func hanging(t *testing.T, files *dirFiles, direct bool) (ino uint64, release chan struct{}) {
	t.Helper()
	h := &hangingFile{direct: direct, release: make(chan struct{})}
	root := &fs.Inode{}
	dir := t.TempDir()
	_, err := fs.Mount(dir, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMount: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild("f", root.NewPersistentInode(ctx, h, fs.StableAttr{Ino: 1<<40 + uint64(len(files.files))}), false)
		},
	})
	if err != nil {
		t.Fatalf("NOT TESTED: a FUSE mount for the dead disk needs root or fusermount3: %v", err)
	}
	t.Cleanup(func() {
		// The door closes the file only after this; then the server ends.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return files.add(t, filepath.Join(dir, "f"), os.O_RDONLY), h.release
}

// A request older than its deadline completes with ETIMEDOUT, and its buffer is
// left alone when the disk answers after all: through the page cache as well as
// by direct I/O into pinned pages.
func TestDeadline(t *testing.T) {
	for name, direct := range map[string]bool{"buffered": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			// One worker: when it serves the next request it is done with the stuck one.
			d, files := serve(t, Options{Deadline: 200 * time.Millisecond, Workers: 1})
			ino, release := hanging(t, files, direct)
			healthy := fileWith(t, files, bytes.Repeat([]byte{'h'}, 4096))
			buf, id, _, err := object(t, d, 1<<20, "")
			if err != nil {
				t.Fatal(err)
			}
			r := newPeer(t, d, 8, ".r0.t0")
			start := time.Now()
			r.prep(3, wire.Args{BufID: id, BufOff: 8192, FileIno: ino, Len: 65536, Userdata: 33})
			r.submit()
			got := r.reap(1, 10*time.Second)
			if len(got) != 1 || got[0] != (wire.Cqe{Index: 3, Result: -int64(syscall.ETIMEDOUT), Userdata: 33}) {
				t.Fatalf("completions %+v", got)
			}
			if waited := time.Since(start); waited < 200*time.Millisecond || waited > 5*time.Second {
				t.Errorf("answered after %v, want about 200 ms", waited)
			}
			mine := bytes.Repeat([]byte{'c'}, 1<<20)
			buf.CopyIn(0, mine)

			// One that never gets a worker times out, too.
			r.prep(4, wire.Args{BufID: id, FileIno: healthy, Len: 10})
			r.submit()
			if got := r.reap(1, 10*time.Second); len(got) != 1 || got[0].Result != -int64(syscall.ETIMEDOUT) {
				t.Fatalf("behind the stuck request: %+v", got)
			}

			close(release)
			for end := time.Now().Add(10 * time.Second); ; {
				if n := r.one(wire.Args{BufID: id, BufOff: 1<<20 - 10, FileIno: healthy, Len: 10}); n == 10 {
					break
				} else if n != -int64(syscall.ETIMEDOUT) || time.Now().After(end) {
					t.Fatalf("after the disk came back: %d", n)
				}
			}
			now := make([]byte, 1<<20)
			buf.CopyOut(now, 0)
			copy(mine[1<<20-10:], "hhhhhhhhhh")
			if !bytes.Equal(now, mine) {
				t.Error("the late answer went into the client's buffer")
			}
			if got := r.reap(1, 50*time.Millisecond); len(got) != 0 {
				t.Errorf("completed twice: %+v", got)
			}
		})
	}
}

// A neighbour that shares a page with a timed-out request still gets its bytes
// where the client looks for them.
func TestDeadlineSparesNeighbours(t *testing.T) {
	d, files := serve(t, Options{Deadline: 300 * time.Millisecond, Workers: 4})
	stuck, releaseStuck := hanging(t, files, false)
	slow, releaseSlow := hanging(t, files, false)
	defer close(releaseStuck)
	buf, id, _, err := object(t, d, 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	r := newPeer(t, d, 8, ".r0.t0")
	other := newPeer(t, d, 8, ".r0.t0")
	r.prep(0, wire.Args{BufID: id, BufOff: 0, FileIno: stuck, Len: 100})
	r.submit()
	time.Sleep(150 * time.Millisecond) // so that their deadlines differ
	other.prep(1, wire.Args{BufID: id, BufOff: 200, FileIno: slow, Len: 100})
	other.submit()
	if got := r.reap(1, 10*time.Second); len(got) != 1 || got[0].Result != -int64(syscall.ETIMEDOUT) {
		t.Fatalf("stuck: %+v", got)
	}
	close(releaseSlow)
	got := other.reap(1, 10*time.Second)
	if len(got) != 1 {
		t.Fatalf("slow: %+v", got)
	}
	b := make([]byte, 100)
	buf.CopyOut(b, 200)
	if got[0].Result == 100 && !bytes.Equal(b, bytes.Repeat([]byte{'x'}, 100)) {
		t.Error("a completed read's bytes are not in the client's buffer")
	}
	if got[0].Result != 100 && got[0].Result != -int64(syscall.ETIMEDOUT) {
		t.Errorf("slow: %+v", got)
	}
}

// Requests of a ring that is unlinked while they run finish or not, but its
// memory is let go only after them (case 65).
func TestUnlinkUnderLoad(t *testing.T) {
	d, files := serve(t, Options{Workers: 4})
	ino := fileWith(t, files, pattern(1<<20))
	for range 200 {
		_, id, iovName, err := object(t, d, 1<<20, "")
		if err != nil {
			t.Fatal(err)
		}
		r := newPeer(t, d, 16, ".r0.t0")
		for i := range int32(16) {
			r.prep(i, wire.Args{BufID: id, BufOff: uint64(i) << 16, FileIno: ino, Len: 1 << 16})
		}
		r.submit()
		if err := d.Unregister(me, iovName); err != nil {
			t.Error(err)
		}
		if err := d.Unregister(me, r.name); err != nil {
			t.Error(err)
		}
	}
	var rest []string
	for _, e := range d.List(me.UID) {
		rest = append(rest, e.Name)
	}
	if len(rest) != 0 {
		t.Errorf("still registered: %v", rest)
	}
}
