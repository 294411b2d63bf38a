package hogs

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// loop runs step(0) to step(n-1), each repeatedly in a goroutine of its own, until the hog is
// stopped.
func loop(h *hog, n int, step func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for h.Running() {
				step(i)
			}
		})
	}
	wg.Wait()
}

// ring is a raw ring with an iov and a file.
type ring struct {
	*hostile.Ring
	id   wire.UUID
	iov  string // the iov's link
	mem  *shm.Mapping
	file *os.File
	ino  uint64
	next int32
}

// newRing makes a ring of so many entries, whose requests use the file and a new iov.
func (h *hog) newRing(entries int, suffix, path string, iovBytes int64) (*ring, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		file.Close()
		return nil, err
	}
	r := &ring{file: file, ino: st.Ino}
	if r.id, r.mem, err = hostile.NewIov(h.Mount, iovBytes); err != nil {
		file.Close()
		return nil, err
	}
	r.iov = hostile.Iovs(h.Mount, r.id.String())
	if r.Ring, err = hostile.NewRing(h.Mount, entries, suffix); err != nil {
		file.Close()
		r.mem.Unmap()
		_ = os.Remove(r.iov) // err is the first error
		return nil, err
	}
	return r, nil
}

func (r *ring) close() {
	r.file.Close()
	r.mem.Unmap()
	_ = os.Remove(r.iov) // the daemon may have ended it
	r.Close()
}

// push queues a request for n bytes at the beginning of the file, at off in the iov.
func (r *ring) push(off, n int64) {
	r.Push(r.next, wire.Args{BufID: r.id, BufOff: uint64(off), FileIno: r.ino, Len: uint64(n), Userdata: uint64(r.next)})
	r.next = r.Layout.Next(r.next)
}

// keepFull fills a ring with requests of n bytes, and again what has completed.
func (h *hog) keepFull(r *ring, n int64) {
	for free := r.Layout.Entries(); h.Running(); {
		for range free {
			r.push(0, n)
		}
		r.Post()
		got := r.Reap(1, 100*time.Millisecond)
		free = len(got)
		for _, c := range got {
			if c.Result < 0 {
				h.count(unix.ErrnoName(syscall.Errno(-c.Result)))
			} else {
				h.count("done")
			}
		}
	}
}

// largeRequests reads 256 MiB with every request of 8 rings of 512. They share an iov, or
// the hog would fill the machine's memory.
func largeRequests(h *hog) error {
	size := int64(h.many(64<<20, 256<<20))
	path := filepath.Join(h.Dir, "large")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(path, size); err != nil {
		return err
	}
	id, mem, err := hostile.NewIov(h.Mount, size)
	if err != nil {
		return err
	}
	defer mem.Unmap()
	defer os.Remove(hostile.Iovs(h.Mount, id.String()))
	loop(h, 8, func(int) {
		r, err := h.newRing(512, ".r0.t0", path, 4096)
		if !h.try(err) {
			h.rest(100 * time.Millisecond)
			return
		}
		defer r.close()
		r.id = id
		h.keepFull(r, size)
	})
	return nil
}

// depth fills a large ring whose requests are taken 64 at a time.
func depth(h *hog) error {
	path := filepath.Join(h.Dir, "depth")
	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); err != nil {
		return err
	}
	r, err := h.newRing(h.many(1<<14, 1<<16), ".r64.t0", path, 64<<10)
	if err != nil {
		return err
	}
	defer r.close()
	h.keepFull(r, 64<<10)
	return nil
}

// stalledRings has many rings with one request each that a depth of 2 never lets begin.
func stalledRings(h *hog) error {
	var held []*hostile.Ring
	defer func() {
		for _, r := range held {
			r.Close()
		}
	}()
	for range h.many(1000, 4000) {
		r, err := hostile.NewRing(h.Mount, 4, ".r2.t0")
		if !h.try(err) || !h.Running() {
			break
		}
		held = append(held, r)
		r.Push(0, wire.Args{Len: 1})
		r.Post()
	}
	for end := time.Now().Add(5 * time.Second); h.Running() && time.Now().Before(end) && len(held) > 0; {
		held[rand.IntN(len(held))].Post()
		h.rest(time.Millisecond)
	}
	return nil
}

// hungRequests fills rings with requests for the part of the data directory that hangs.
func hungRequests(h *hog) error {
	loop(h, 4, func(i int) {
		r, err := h.newRing(256, ".r0.t0", h.disk(i), 1<<20)
		if !h.try(err) {
			h.rest(100 * time.Millisecond)
			return
		}
		defer r.close()
		h.keepFull(r, 4096)
	})
	return nil
}

// semaphores overwrites and truncates its own submit semaphores, and those of the honest
// clients if it may.
func semaphores(h *hog) error {
	var paths []string
	for _, link := range []string{"submit-ios", "submit-ios.ph", "submit-ios.pl"} {
		if path, err := os.Readlink(hostile.Iovs(h.Mount, link)); err == nil {
			paths = append(paths, path)
		}
	}
	for _, uid := range h.Users {
		for _, path := range hostile.Objects(uid) {
			if strings.HasPrefix(filepath.Base(path), "sem.") {
				paths = append(paths, path)
			}
		}
	}
	for range 200 {
		for _, path := range paths {
			h.try(deface(path, rand.IntN(4)))
		}
		h.rest(time.Millisecond)
	}
	return nil
}

func deface(path string, how int) error {
	if how == 0 {
		return os.Truncate(path, 0)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 32)
	if how == 1 {
		for i := range b {
			b[i] = 0xff
		}
	}
	if how == 2 {
		return f.Truncate(1 << 30)
	}
	_, err = f.WriteAt(b, 0)
	return err
}

// words writes random values over the words of a ring, and posts.
func words(h *hog) error {
	path := filepath.Join(h.Dir, "words")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		return err
	}
	for _, suffix := range []string{".r0.t0", ".w0.t0.ph", ".r-8.t5", ".r4.t0.pl"} {
		r, err := h.newRing(32, suffix, path, 1<<20)
		if !h.try(err) {
			continue
		}
		for range 2000 {
			if rand.IntN(3) == 0 {
				r.push(rand.Int64N(1<<20), rand.Int64N(1<<20))
			}
			off, value := rand.Int64N(r.Mem.Len()/4)*4, rand.Int32()
			if rand.IntN(2) == 0 {
				off, value = rand.Int64N(4)*4, rand.Int32N(40)-4
			}
			if r.Mem.StoreInt32(off, value); rand.IntN(8) == 0 {
				r.Post()
				h.rest(100 * time.Microsecond)
			}
			h.count("done")
		}
		r.close()
	}
	return nil
}

// ringObject punches, shrinks and grows the object of a ring that is in use.
func ringObject(h *hog) error {
	r, err := hostile.NewRing(h.Mount, 1024, ".r0.t0")
	if err != nil {
		return err
	}
	defer r.Close()
	return h.resize(r.Path, r.Mem.Len(), r.Post)
}

// resize changes an object's size and memory for a while, and calls use in between.
func (h *hog) resize(path string, size int64, use func()) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for i := 0; i < 2000 && h.Running(); i++ {
		switch rand.IntN(4) {
		case 0:
			h.try(unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size))
		case 1:
			h.try(f.Truncate(2 << 30))
		case 2:
			h.try(f.Truncate(rand.Int64N(size)))
		case 3:
			h.try(f.Truncate(size))
		}
		use()
		h.rest(200 * time.Microsecond)
	}
	return nil
}

// iovObject shrinks and grows an iov that requests read into.
func iovObject(h *hog) error {
	const size = 16 << 20
	content := filepath.Join(h.Dir, "iov")
	if err := os.WriteFile(content, make([]byte, size), 0o600); err != nil {
		return err
	}
	path, err := hostile.NewObject(size)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	id, err := hostile.Register(h.Mount, path, "")
	if err != nil {
		return err
	}
	defer os.Remove(hostile.Iovs(h.Mount, id.String()))
	r, err := h.newRing(64, ".r0.t0", content, 4096)
	if err != nil {
		return err
	}
	defer r.close()
	r.id = id
	inFlight := 0
	return h.resize(path, size, func() {
		inFlight -= len(r.Reap(0, 0))
		for ; inFlight < 32; inFlight++ {
			r.push(0, size)
		}
		r.Post()
	})
}
