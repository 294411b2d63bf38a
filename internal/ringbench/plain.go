package ringbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// plainContender is a pread or pwrite loop on as many threads of the operating
// system, on the data directory or through the mount.
type plainContender struct {
	label   string
	c       testCase
	files   *files
	opened  []*os.File // one for each file
	fds     []int      // theirs
	lanes   []lane     // one for each thread
	buffers [][]byte   // likewise; page-aligned, not Go's memory
	call    func(t *plainContender, thread int, off int64) error
}

func newPlainContender(c testCase, f *files, direct bool) (*plainContender, error) {
	// As a C program would do it, for this is what the rings are held against.
	return newThreads(namePlain, c, f, f.data, direct, (*plainContender).raw)
}

func newMountContender(c testCase, f *files, direct bool) (*plainContender, error) {
	// A request that the mount's daemon serves can be interrupted by the signals
	// with which Go preempts a thread, unless Go knows that it is in a call.
	return newThreads(nameMount, c, f, f.mount, direct, (*plainContender).announced)
}

func newThreads(label string, c testCase, f *files, dir string, direct bool, call func(*plainContender, int, int64) error) (_ *plainContender, err error) {
	p := &plainContender{label: label, c: c, files: f, call: call}
	defer func() {
		if err != nil {
			p.close()
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
		buf, err := unix.Mmap(-1, 0, int(c.sizeBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return nil, fmt.Errorf("%s: buffer of %s: %w", label, sizeText(c.sizeBytes), err)
		}
		p.buffers = append(p.buffers, buf)
		p.lanes = append(p.lanes, newLane(f.sizeBytes, c.sizeBytes, thread%c.rings, thread/c.rings, perFile))
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
	for _, b := range p.buffers {
		unix.Munmap(b)
	}
	p.opened, p.buffers = nil, nil
	return nil
}

func (p *plainContender) run(ctx context.Context, d time.Duration, round int) (sample, error) {
	for thread, l := range p.lanes {
		readyBuffer(p.buffers[thread], p.c, p.label, l.ring, thread, round)
	}
	// A thread in a call keeps its processor: with one for each of them, none
	// ever waits for Go's scheduler.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(len(p.lanes) + runtime.NumCPU()))
	s, err := together(len(p.lanes), func(thread int, start <-chan struct{}) (int64, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		<-start
		return p.work(ctx, thread, time.Now().Add(d))
	})
	if err != nil {
		return s, fmt.Errorf("%s: %w", p.label, err)
	}
	for ring := range p.c.rings {
		if ring >= len(p.lanes) {
			break
		}
		thread := ring // thread t works on file t modulo rings
		if p.c.write {
			err = p.files.checkWritten(p.buffers[thread], ring, p.lanes[thread].last)
		} else {
			err = checkRead(p.buffers[thread], ring, p.lanes[thread].last)
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", p.label, err)
		}
	}
	return s, nil
}

// work moves blocks until the deadline, looking at the clock once every 64 KiB
// at the least.
func (p *plainContender) work(ctx context.Context, thread int, deadline time.Time) (requests int64, err error) {
	batch := int(max(1, 64<<10/p.c.sizeBytes))
	lane := &p.lanes[thread]
	for time.Now().Before(deadline) && ctx.Err() == nil {
		for range batch {
			if err := p.call(p, thread, lane.next()); err != nil {
				return requests, err
			}
			requests++
		}
	}
	return requests, ctx.Err()
}

// raw calls without announcing it to Go's scheduler, which costs a tenth of a
// 4 KiB pread on tmpfs (70 of 690 ns, 2-core EPYC, 2026-11). The address is that
// of a mapping of our own, which nothing moves.
func (p *plainContender) raw(thread int, off int64) error {
	trap := uintptr(syscall.SYS_PREAD64)
	if p.c.write {
		trap = syscall.SYS_PWRITE64
	}
	buf := reflect.ValueOf(p.buffers[thread]).Pointer()
	n, _, errno := syscall.RawSyscall6(trap, uintptr(p.fds[p.lanes[thread].ring]), buf, uintptr(p.c.sizeBytes), uintptr(off), 0, 0)
	if errno != 0 {
		n = 0
	}
	return p.judge(int(n), errno)
}

func (p *plainContender) announced(thread int, off int64) (err error) {
	var n int
	fd := p.fds[p.lanes[thread].ring]
	for {
		if p.c.write {
			n, err = unix.Pwrite(fd, p.buffers[thread], off)
		} else {
			n, err = unix.Pread(fd, p.buffers[thread], off)
		}
		if err != unix.EINTR {
			break
		}
	}
	errno, _ := err.(syscall.Errno)
	return p.judge(n, errno)
}

func (p *plainContender) judge(n int, errno syscall.Errno) error {
	switch {
	case errno != 0:
		return fmt.Errorf("%s of %d bytes: %w", p.c.op(), p.c.sizeBytes, errno)
	case n != int(p.c.sizeBytes):
		return fmt.Errorf("%s of %d bytes: only %d bytes moved", p.c.op(), p.c.sizeBytes, n)
	}
	return nil
}
