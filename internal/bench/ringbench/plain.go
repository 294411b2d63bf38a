package ringbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// plainContender is a pread or pwrite loop on operating system threads, on the data
// directory or through the mount.
type plainContender struct {
	label   string
	c       testCase
	files   *files
	opened  []*os.File // one for each file
	fds     []int      // of opened
	stripes []stripe   // one for each thread
	// buffers are the iovs of the rings, one part for each entry, used in turns by all
	// threads. With a buffer of its own, a thread would fill the same bytes of its cache
	// again and again, while the rings go through all of their iovs. And with separate
	// memory the loop would be faster or slower than the rings depending on how
	// contiguous that memory is for the device: by up to a factor of two here.
	buffers [][]byte
	next    atomic.Uint64
	call    func(p *plainContender, fd int, buf []byte, off int64) error
}

func newPlainContender(c testCase, f *files, buffers [][]byte, direct bool) (*plainContender, error) {
	// As a C program would do it, because the rings are compared with this.
	return newThreads(namePlain, c, f, f.data, buffers, direct, (*plainContender).raw)
}

func newMountContender(c testCase, f *files, buffers [][]byte, direct bool) (*plainContender, error) {
	// The signals with which Go preempts threads can interrupt a request to the mount's
	// daemon, unless Go knows that the thread is in a system call.
	return newThreads(nameMount, c, f, f.mount, buffers, direct, (*plainContender).announced)
}

func newThreads(label string, c testCase, f *files, dir string, buffers [][]byte, direct bool, call func(*plainContender, int, []byte, int64) error) (_ *plainContender, err error) {
	p := &plainContender{label: label, c: c, files: f, buffers: buffers, call: call}
	defer func() {
		if err != nil {
			_ = p.close() // err is the first error
		}
	}()
	mode := os.O_RDONLY
	if c.write {
		mode = os.O_WRONLY
	}
	for ring := range c.rings {
		path := f.path(dir, ring, c.write)
		file, err := openMaybeDirect(path, mode, direct)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", label, err)
		}
		p.opened = append(p.opened, file)
		p.fds = append(p.fds, int(file.Fd()))
	}
	perFile := (c.threads + c.rings - 1) / c.rings
	for thread := range c.threads {
		p.stripes = append(p.stripes, newStripe(f.sizeBytes, c.sizeBytes, thread%c.rings, thread/c.rings, perFile))
	}
	return p, nil
}

func openMaybeDirect(path string, mode int, direct bool) (*os.File, error) {
	if !direct {
		return os.OpenFile(path, mode, 0)
	}
	f, err := os.OpenFile(path, mode|unix.O_DIRECT, 0)
	if errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("%s: the file system has no direct I/O; choose --io buffered or another --scratch", path)
	}
	return f, err
}

func (p *plainContender) name() string { return p.label }

func (p *plainContender) close() error {
	for _, f := range p.opened {
		f.Close()
	}
	p.opened = nil
	return nil
}

func (p *plainContender) run(ctx context.Context, d time.Duration, round int) (sample, error) {
	for i, buf := range p.buffers {
		readyBuffer(buf, p.c, p.label, 0, i, round)
	}
	// A thread in a call keeps its processor. With one processor for each thread, none
	// waits for Go's scheduler.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(len(p.stripes) + runtime.NumCPU()))
	s, err := together(len(p.stripes), func(_ int, start <-chan struct{}) (int64, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		<-start
		return p.work(ctx, time.Now().Add(d))
	})
	if err != nil {
		return s, fmt.Errorf("%s: %w", p.label, err)
	}
	if err := p.check(round); err != nil {
		return s, fmt.Errorf("%s: %w", p.label, err)
	}
	return s, nil
}

// check moves one more block for each file, in the same way as all others, and checks it:
// the buffers of the run have all been reused.
func (p *plainContender) check(round int) error {
	for ring := range min(p.c.rings, len(p.stripes)) { // thread t works on file t modulo rings
		off := p.stripes[ring].next()
		buf := p.buffers[0]
		readyBuffer(buf, p.c, p.label, ring+1, 0, round)
		err := p.call(p, p.fds[ring], buf, off)
		switch {
		case err != nil:
		case p.c.write:
			err = p.files.checkWritten(buf, ring, off)
		default:
			err = checkRead(buf, ring, off)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// work moves blocks until the deadline and reads the clock at least once every 64 KiB.
// The threads share one request queue, as in the rings' daemon: if each had a part of
// the file, its part would stay in the processor's cache.
func (p *plainContender) work(ctx context.Context, deadline time.Time) (requests int64, err error) {
	batch := int(max(1, 64<<10/p.c.sizeBytes))
	for time.Now().Before(deadline) && ctx.Err() == nil {
		for range batch {
			n := p.next.Add(1)
			stripe := &p.stripes[n%uint64(len(p.stripes))]
			if err := p.call(p, p.fds[stripe.ring], p.buffers[n%uint64(len(p.buffers))], stripe.at(n)); err != nil {
				return requests, err
			}
			requests++
		}
	}
	return requests, ctx.Err()
}

// raw makes the system call as a C program would: see shm.Window.RawPread.
func (p *plainContender) raw(fd int, buf []byte, off int64) (err error) {
	w := shm.OwnWindow(buf)
	var n int64
	if p.c.write {
		n, err = w.RawPwrite(fd, off)
	} else {
		n, err = w.RawPread(fd, off)
	}
	return p.judge(n, err)
}

func (p *plainContender) announced(fd int, buf []byte, off int64) (err error) {
	var n int
	for {
		if p.c.write {
			n, err = unix.Pwrite(fd, buf, off)
		} else {
			n, err = unix.Pread(fd, buf, off)
		}
		if err != unix.EINTR {
			break
		}
	}
	return p.judge(int64(n), err)
}

func (p *plainContender) judge(n int64, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%s of %d bytes: %w", p.c.op(), p.c.sizeBytes, err)
	case n != p.c.sizeBytes:
		return fmt.Errorf("%s of %d bytes: only %d bytes moved", p.c.op(), p.c.sizeBytes, n)
	}
	return nil
}
