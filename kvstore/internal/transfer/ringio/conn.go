package ringio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/usrbio"
)

// conn is an engine's connection to one daemon, until the daemon is found dead or the
// engine is closed. The goroutine that runs it owns all of its other goroutines.
type conn struct {
	o       *Options
	mount   *usrbio.Mount
	dev     uint64
	daemon  *witness
	read    *direction
	write   *direction
	known   atomic.Pointer[[]known] // replaced, never changed
	copiers sync.WaitGroup          // of both directions
	waiters sync.WaitGroup

	overdue atomic.Int32 // system calls that bound gave up, and that have not returned since

	once  sync.Once
	why   error         // why it is dead; set before dying is closed
	dying chan struct{} // closed by the first caller of die
	gone  chan struct{} // closed by run when nothing is left
	err   error         // of closing; set before gone is closed
	inUse error         // says that the daemon may still use memory in place; set likewise
}

// known is registered memory.
type known struct {
	memory
	iov *usrbio.Iov
}

// copyJob is an entry to be copied to or from its piece of the staging iov.
type copyJob struct {
	r *ring
	i int
}

// connect makes a connection to the daemon that is there now.
func connect(o *Options, memories []memory) (_ *conn, err error) {
	m, err := usrbio.Open(context.Background(), o.Mount)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = m.Close(context.Background()) // err is the first error
		}
	}()
	c := &conn{
		o: o, mount: m,
		dying: make(chan struct{}), gone: make(chan struct{}),
	}
	if c.dev, err = deviceOf(m.Path()); err != nil {
		return nil, err
	}
	c.known.Store(new([]known))
	for _, mem := range memories {
		// If the name is no longer that of the memory, its buffers are copied from now on.
		if err := c.register(mem); err != nil && !errors.Is(err, syscall.ENOENT) {
			return nil, err
		}
	}
	if c.read, err = c.newDirection(false); err != nil {
		return nil, err
	}
	if c.write, err = c.newDirection(true); err != nil {
		return nil, err
	}
	c.daemon = findDaemon(m.Path())
	go c.run()
	return c, nil
}

func (c *conn) newDirection(write bool) (*direction, error) {
	d := &direction{c: c, write: write, chunkBytes: c.o.chunkBytes(), copies: make(chan copyJob, c.o.Streams*c.o.Entries)}
	size := c.o.BufferBytes / 2 / int64(d.chunkBytes) * int64(d.chunkBytes)
	var err error
	if d.staging, err = c.mount.NewIov(context.Background(), size, usrbio.IovOptions{NUMANode: c.o.NUMANode, Reserve: true}); err != nil {
		return nil, err
	}
	if err := d.staging.Unlink(); err != nil { // so that nothing is left if we are killed
		return nil, err
	}
	for at := size - int64(d.chunkBytes); at >= 0; at -= int64(d.chunkBytes) {
		d.chunks = append(d.chunks, at)
	}
	for range c.o.Streams {
		r, err := c.mount.NewRing(context.Background(), usrbio.RingOptions{Entries: c.o.Entries, Write: write})
		if err != nil {
			return nil, err
		}
		d.rings = append(d.rings, newRing(d, r))
	}
	return d, nil
}

func (c *conn) toward(write bool) *direction {
	if write {
		return c.write
	}
	return c.read
}

// register registers memory with the daemon. ENOENT: the name has gone, or is now that of
// another object, which is not ours to write to.
func (c *conn) register(mem memory) error {
	iov, err := c.mount.RegisterIov(context.Background(), mem.name, usrbio.IovOptions{})
	if err != nil {
		return err
	}
	if ino, err := inodeOf(mem.name); err != nil || ino != mem.ino {
		return errors.Join(fmt.Errorf("ringio: register %s: it is now another object: %w", mem.name, syscall.ENOENT), iov.Close(context.Background()))
	}
	if iov.Size() < int64(len(mem.bytes)) {
		return errors.Join(fmt.Errorf("ringio: register %s: it has %d bytes, but %d are said to be mapped: %w",
			mem.name, iov.Size(), len(mem.bytes), syscall.EINVAL), iov.Close(context.Background()))
	}
	all := append([]known(nil), *c.known.Load()...)
	all = append(all, known{mem, iov})
	c.known.Store(&all)
	return nil
}

// inPlace returns the iov that contains buf and the offset in it, or nil if none does.
func (c *conn) inPlace(buf []byte) (*usrbio.Iov, int64) {
	for _, k := range *c.known.Load() {
		if at, ok := shm.OffsetIn(k.bytes, buf); ok {
			return k.iov, at
		}
	}
	return nil, 0
}

// lost ends the connection because the daemon is gone.
func (c *conn) lost(err error) { c.die(staleFor(err)) }

// die makes run end the connection. The first reason counts.
func (c *conn) die(why error) {
	c.once.Do(func() {
		c.why = why
		close(c.dying)
	})
}

func (c *conn) dead() bool {
	select {
	case <-c.dying:
		return true
	default:
		return false
	}
}

// run starts the goroutines of the connection, times out requests until it dies, and then
// ends everything.
func (c *conn) run() {
	defer close(c.gone)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, d := range []*direction{c.read, c.write} {
		for _, r := range d.rings {
			c.waiters.Go(func() {
				if err := r.wait(ctx); err != nil {
					c.lost(err)
				}
			})
		}
	}
	for range c.o.Streams {
		c.copiers.Go(c.read.copy)
		c.copiers.Go(c.write.copy)
	}
	c.lookRegularly()
	cancel()
	c.waiters.Wait()
	harmless := errors.Is(c.why, ErrStale) && c.daemon.exited()
	if n := c.read.cutOff(c.why, harmless) + c.write.cutOff(c.why, harmless); n > 0 {
		c.inUse = kv.Abandoned(fmt.Sprintf("the daemon of %s has not answered %d requests", c.mount.Path(), n))
	}
	close(c.read.copies) // nothing is begun any more
	close(c.write.copies)
	c.copiers.Wait()
	c.daemon.close()
	c.err = c.mount.Close(context.Background())
}

// lookRegularly calls look for both directions periodically until the connection dies.
func (c *conn) lookRegularly() {
	tick := time.NewTicker(min(max(c.o.Timeout/8, 5*time.Millisecond), 100*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-c.dying:
			return
		case now := <-tick.C:
			c.read.look(now)
			c.write.look(now)
		}
	}
}

// copy runs a copier. Each direction has its own, so that reads do not wait for writes.
func (d *direction) copy() {
	for job := range d.copies {
		job.copy()
		d.copied(job.r, job.i)
	}
}

// copy copies the bytes. While the entry's state is copying, it belongs to the copier.
func (j copyJob) copy() {
	e := &j.r.entries[j.i]
	staged := j.r.d.staging.Bytes()[e.chunk:]
	if j.r.d.write {
		copy(staged[:e.n], e.m.op.Buf[e.from:])
	} else {
		copy(e.m.op.Buf[e.from:], staged[:e.got])
	}
}

// close waits for what has begun and then ends the connection. It waits for a daemon that
// hangs for the engine's timeout at most.
func (c *conn) close() error {
	reads, writes := c.read.close(), c.write.close()
	<-reads
	<-writes
	c.die(kv.ErrClosed)
	select {
	case <-c.gone:
		return errors.Join(c.err, c.inUse)
	case <-time.After(c.o.Timeout):
		return fmt.Errorf("ringio: close: the daemon of %s does not answer: %w", c.mount.Path(), kv.ErrTimeout)
	}
}

// bound runs a call that the daemon must answer and waits for it at most for the engine's
// timeout. Until a call that was not answered in time has returned, it does not wait for the
// next ones: a thousand files to close must not cost a thousand timeouts.
func (c *conn) bound(fn func() error) error {
	const (
		running int32 = iota
		late
		returned
	)
	var state atomic.Int32
	done := make(chan error, 1)
	go func() {
		err := fn()
		if state.Swap(returned) == late {
			c.overdue.Add(-1)
		}
		done <- err
	}()
	// A call that was not given any time says nothing about the daemon: were it counted, calls
	// that overlap could keep each other from being waited for.
	patient := c.overdue.Load() <= 0
	var patience time.Duration
	if patient {
		patience = c.o.Timeout
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		if patient && state.CompareAndSwap(running, late) {
			c.overdue.Add(1)
		}
		return kv.ErrTimeout
	}
}

// serves reports whether the connection is still the one to use after the daemon gave an
// error. A file of another mount, for instance, is an error of the file, not of the daemon.
func (c *conn) serves(err error) bool {
	switch {
	case c.dead():
		return false
	case !errors.Is(err, syscall.EXDEV) && !errors.Is(err, usrbio.ErrDaemonGone):
		return true
	}
	// By now the mount point may belong to a daemon that hangs. Then the call is left
	// behind, and the connection is not the one to use.
	same := make(chan bool, 1)
	go func() {
		dev, err := deviceOf(c.mount.Path())
		same <- err == nil && dev == c.dev
	}()
	select {
	case is := <-same:
		return is
	case <-time.After(c.o.Timeout):
		return false
	}
}

// inodeOf returns the inode of a shared memory object, which tells objects of one name
// apart.
func inodeOf(object string) (uint64, error) {
	path := filepath.Join(shm.Dir, object)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

func deviceOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("ringio: %s: %w", path, err)
	}
	return st.Dev, nil
}
