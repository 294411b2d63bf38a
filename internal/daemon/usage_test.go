package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/internal/test/usagemodel"
	"github.com/kv3fs/kv3fs/usrbio"
)

// daemonWith runs a daemon in this process, until the test calls stop.
func daemonWith(t *testing.T, model *usagemodel.Model, pass fuseserver.Passthrough) (data, mount string, stop func()) {
	t.Helper()
	daemontest.NeedMounts(t)
	dir := t.TempDir()
	data, mount = filepath.Join(dir, "data"), filepath.Join(dir, "mnt")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	root := usagemodel.KeyOf(t, data)
	model.Created(root, usagemodel.Key{}, "", true)
	model.Settle(root, 0, usagemodel.Taken(t, data)[root])
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{
			DataDir: data, MountPoint: mount, Mount: fuseserver.Options{Cluster: "usage", Passthrough: pass}, Settings: settings.Defaults(),
			Drain: patience, Log: slog.New(slog.DiscardHandler), usage: model,
		}, func(point string) { ready <- point })
	}()
	select {
	case mount = <-ready:
	case err := <-done:
		cancel()
		t.Fatal(err)
	}
	noPolling(t, filepath.Join(mount, "polled"))
	return data, mount, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// noPolling has the kernel learn that files of the mount cannot be polled. Otherwise it would ask
// for that when this process opens the first one, in a call for which the runtime keeps the
// thread's P, and the daemon is in this process.
func noPolling(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unlink(path); err != nil {
		t.Fatal(err)
	}
}

var passthroughs = map[string]fuseserver.Passthrough{"passthrough": fuseserver.PassthroughAuto, "no passthrough": fuseserver.PassthroughOff}

// Whatever clients do through the mount and rings, what the tree's Usage hears adds up to what
// is on the disk.
func TestUsageAddsUpThroughMountAndRings(t *testing.T) {
	for name, pass := range passthroughs {
		t.Run(name, func(t *testing.T) {
			model := usagemodel.New(t)
			data, mount, stop := daemonWith(t, model, pass)
			c := newUsageClient(t, mount)
			for range 400 {
				c.step()
			}
			c.close()
			useAll(t, data, mount)
			stop()
			model.Check(data)
		})
	}
}

// useAll has everything written back, and then uses each file once: where extents of a file lie is noted, or noted no
// more, in blocks that come and go when they are written back, of which nobody is told.
func useAll(t *testing.T, data, mount string) {
	t.Helper()
	dir, err := os.Open(data)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(mount, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.Name() == "3fs-virt":
			return fs.SkipDir
		case !e.Type().IsRegular():
			return nil
		}
		f, err := os.Open(path)
		if err == nil {
			f.Close()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// usageClient does random things to the files of a mount.
type usageClient struct {
	t        *testing.T
	r        *rand.Rand
	mount    string
	m        *usrbio.Mount
	iov      *usrbio.Iov
	read, wr *usrbio.Ring
	open     []*os.File
	mappings [][]byte
}

const usageIovBytes = 256 << 10

func newUsageClient(t *testing.T, mount string) *usageClient {
	t.Helper()
	c := &usageClient{t: t, r: rand.New(rand.NewPCG(seed.New(t), 2)), mount: mount}
	var err error
	try := func(e error) {
		if e != nil {
			t.Fatal(e)
		}
	}
	c.m, err = usrbio.Open(t.Context(), mount)
	try(err)
	c.iov, err = c.m.NewIov(t.Context(), usageIovBytes, usrbio.IovOptions{})
	try(err)
	c.read, err = c.m.NewRing(t.Context(), usrbio.RingOptions{Entries: 8})
	try(err)
	c.wr, err = c.m.NewRing(t.Context(), usrbio.RingOptions{Entries: 8, Write: true})
	try(err)
	for _, d := range []string{"d0", "d1", "d1/d2"} {
		try(os.Mkdir(filepath.Join(mount, d), 0o755))
	}
	return c
}

func (c *usageClient) path() string {
	dirs := []string{"", "d0", "d1", "d1/d2"}
	return filepath.Join(c.mount, dirs[c.r.IntN(len(dirs))], fmt.Sprintf("n%d", c.r.IntN(8)))
}

func (c *usageClient) close() {
	ctx := context.Background()
	for _, f := range c.open {
		f.Close()
	}
	for _, b := range c.mappings {
		unix.Munmap(b)
	}
	c.read.Close(ctx)
	c.wr.Close(ctx)
	c.iov.Close(ctx)
	c.m.Close(ctx)
}

func (c *usageClient) step() {
	size := func() int64 { return int64(c.r.IntN(200 << 10)) }
	some := make([]byte, size())
	pick := func() *os.File {
		if len(c.open) == 0 {
			return nil
		}
		return c.open[c.r.IntN(len(c.open))]
	}
	switch c.r.IntN(14) {
	case 0, 1:
		flags := os.O_RDWR | os.O_CREATE | []int{0, os.O_TRUNC, os.O_APPEND, os.O_EXCL}[c.r.IntN(4)]
		if f, err := os.OpenFile(c.path(), flags, 0o644); err == nil {
			c.open = append(c.open, f)
		}
	case 2:
		if fd, err := unix.Open(c.mount, unix.O_TMPFILE|unix.O_RDWR, 0o644); err == nil {
			c.open = append(c.open, os.NewFile(uintptr(fd), "unnamed"))
		}
	case 3:
		os.Mkdir(c.path(), 0o755)
		os.Link(c.path(), c.path())
	case 4:
		os.Rename(c.path(), c.path())
		unix.Renameat2(unix.AT_FDCWD, c.path(), unix.AT_FDCWD, c.path(), unix.RENAME_EXCHANGE)
	case 5:
		os.Remove(c.path())
	case 6:
		os.Truncate(c.path(), size())
	case 7:
		os.Symlink(c.path(), filepath.Join(c.mount, "3fs-virt/rm-rf", fmt.Sprint(c.r.Uint64())))
	case 8, 9:
		if f := pick(); f != nil {
			f.Write(some)
			f.WriteAt(some, size())
		}
	case 10:
		if f := pick(); f != nil {
			modes := []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE}
			unix.Fallocate(int(f.Fd()), modes[c.r.IntN(3)], size(), size()+1)
			if c.r.IntN(2) == 0 {
				f.Sync()
			}
		}
	case 11:
		if f := pick(); f != nil {
			if g := pick(); g != f {
				unix.CopyFileRange(int(f.Fd()), ptr(size()), int(g.Fd()), ptr(size()), int(size()), 0)
				f.Seek(0, io.SeekStart)
				io.Copy(g, io.LimitReader(f, size())) // sendfile or splice
			}
		}
	case 12:
		if f := pick(); f != nil {
			c.ring(c.wr, f, size(), size()+1)
			c.ring(c.read, f, size(), size()+1)
		}
		if f := pick(); f != nil && c.r.IntN(3) == 0 {
			f.Truncate(64 << 10)
			if b, err := unix.Mmap(int(f.Fd()), 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
				b[c.r.IntN(len(b))] = 1
				c.mappings = append(c.mappings, b)
				if len(c.mappings) > 4 {
					unix.Munmap(c.mappings[0])
					c.mappings = c.mappings[1:]
				}
			}
		}
	case 13:
		if n := len(c.open); n > 0 {
			c.open[n-1].Close()
			c.open = c.open[:n-1]
		}
	}
}

func ptr(n int64) *int64 { return &n }

func (c *usageClient) ring(ring *usrbio.Ring, f *os.File, off, n int64) {
	file, err := c.m.Register(c.t.Context(), f)
	if err != nil {
		return
	}
	defer file.Close(context.Background())
	ring.Do(c.t.Context(), []usrbio.Request{{File: file, FileOffset: off, Iov: c.iov, Bytes: min(n, usageIovBytes)}})
}

// ownBytes is what the file system may note for itself, when it writes back, of where one file lies.
const ownBytes = 8 << 10

// missed reports whether the model and the disk differ by more than that.
func missed(t *testing.T, model *usagemodel.Model, data string) (used, is int64, missed bool) {
	t.Helper()
	used, is = model.Used(), sum(usagemodel.Taken(t, data))
	return used, is, used > is+ownBytes || used < is-ownBytes
}

// Every write through the mount is seen at once, also where another client reads the file past
// the daemon. What a mapping makes grow is seen soon.
func TestUsageSeesWrites(t *testing.T) {
	for name, pass := range passthroughs {
		t.Run(name, func(t *testing.T) {
			model := usagemodel.New(t)
			data, mount, stop := daemonWith(t, model, pass)
			defer stop()
			path := filepath.Join(mount, "f")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			reader, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			mib := bytes.Repeat([]byte{'x'}, 1<<20)
			for range 4 {
				if _, err := f.Write(mib); err != nil {
					t.Fatal(err)
				}
				if used, is, missed := missed(t, model, data); missed {
					t.Fatalf("%d bytes are seen of %d", used, is)
				}
			}
			c := newUsageClient(t, mount)
			defer c.close()
			c.ring(c.wr, f, 4<<20, usageIovBytes)
			awaitSeen(t, "after a ring's write", model, data)
			got := make([]byte, len(mib))
			if _, err := reader.ReadAt(got, 3<<20); err != nil || !bytes.Equal(got, mib) {
				t.Errorf("read: %v", err)
			}
			if err := f.Truncate(8 << 20); err != nil {
				t.Fatal(err)
			}
			b, err := unix.Mmap(int(f.Fd()), 4<<20, 4<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err == syscall.ENODEV {
				return // without passthrough there are no such mappings
			}
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(b)
			f.Close() // the mapping stays
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			awaitSeen(t, "after a mapping made it grow", model, data)
		})
	}
}

// awaitSeen waits until the model misses nothing.
func awaitSeen(t *testing.T, when string, model *usagemodel.Model, data string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		used, is, missed := missed(t, model, data)
		if !missed {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s, %d bytes are seen of %d", when, used, is)
		}
	}
}

func sum(blocks map[usagemodel.Key]int64) (bytes int64) {
	for _, n := range blocks {
		bytes += n * 512
	}
	return bytes
}

// A limit shows in statfs, and what has no room fails with ENOSPC through mount and rings.
func TestLimitShows(t *testing.T) {
	model := usagemodel.New(t)
	model.Capacity = 8 << 20
	_, mount, stop := daemonWith(t, model, fuseserver.PassthroughAuto)
	defer stop()
	var st unix.Statfs_t
	if err := unix.Statfs(mount, &st); err != nil || int64(st.Blocks)*st.Bsize != 8<<20 || int64(st.Bavail)*st.Bsize > 8<<20 || st.Bavail == 0 || st.Bfree != st.Bavail {
		t.Errorf("%+v, %v", st, err)
	}
	c := newUsageClient(t, mount)
	defer c.close()
	f, err := os.Create(filepath.Join(mount, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Write(make([]byte, 16<<20))
	if err == nil || n >= 8<<20 || n < 6<<20 {
		t.Errorf("a write of 16 MiB into 8: %d, %v", n, err)
	}
	file, err := c.m.Register(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close(context.Background())
	requests := make([]usrbio.Request, 8)
	failed := false
	for at := int64(n); at < 16<<20 && !failed; {
		for i := range requests {
			requests[i] = usrbio.Request{File: file, FileOffset: at, Iov: c.iov, Bytes: usageIovBytes}
			at += usageIovBytes
		}
		if err := c.wr.Do(t.Context(), requests); err != nil {
			t.Fatal(err)
		}
		for _, q := range requests {
			failed = failed || q.Err() == syscall.ENOSPC
		}
	}
	if used := model.Used(); !failed || used > 8<<20 {
		t.Errorf("a ring wrote on: %d bytes are used", used)
	}
	if err := os.Remove(filepath.Join(mount, "f")); err != nil {
		t.Error(err)
	}
}
