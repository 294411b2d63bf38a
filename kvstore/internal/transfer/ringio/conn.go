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
	"github.com/kv3fs/kv3fs/kvstore/kv"
	"github.com/kv3fs/kv3fs/usrbio"
)

// conn is an engine's connection to one daemon, from the day it is made until it is
// found dead or closed. Its keeper owns all of its other goroutines.
type conn struct {
	o       *Options
	mount   *usrbio.Mount
	dev     uint64
	daemon  *witness
	read    *lane
	write   *lane
	known   atomic.Pointer[[]known] // replaced, never changed
	copies  chan copyJob
	copiers sync.WaitGroup
	waiters sync.WaitGroup

	hung atomic.Bool // it has once not answered a system call in time

	once  sync.Once
	why   error         // why it is dead, before dying is closed
	dying chan struct{} // closed by the first who finds out
	gone  chan struct{} // closed by the keeper when nothing is left
	err   error         // of closing, before gone is closed
	inUse error         // that the daemon may still use memory in place, likewise
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
			m.Close(context.Background())
		}
	}()
	c := &conn{
		o: o, mount: m,
		copies: make(chan copyJob, 2*o.Streams*o.Entries),
		dying:  make(chan struct{}), gone: make(chan struct{}),
	}
	if c.dev, err = deviceOf(m.Path()); err != nil {
		return nil, err
	}
	c.known.Store(new([]known))
	for _, mem := range memories {
		// A name that is not the memory's any more: what is in it is copied from now on.
		if err := c.register(mem); err != nil && !errors.Is(err, syscall.ENOENT) {
			return nil, err
		}
	}
	if c.read, err = c.newLane(false); err != nil {
		return nil, err
	}
	if c.write, err = c.newLane(true); err != nil {
		return nil, err
	}
	c.daemon = findDaemon(m.Path())
	go c.keep()
	return c, nil
}

func (c *conn) newLane(write bool) (*lane, error) {
	l := &lane{c: c, write: write, chunkBytes: c.o.chunkBytes()}
	size := c.o.BufferBytes / 2 / int64(l.chunkBytes) * int64(l.chunkBytes)
	var err error
	if l.staging, err = c.mount.NewIov(context.Background(), size, usrbio.IovOptions{NUMANode: c.o.NUMANode, Reserve: true}); err != nil {
		return nil, err
	}
	if err := l.staging.Unlink(); err != nil { // killed, we leave no memory behind
		return nil, err
	}
	for at := size - int64(l.chunkBytes); at >= 0; at -= int64(l.chunkBytes) {
		l.chunks = append(l.chunks, at)
	}
	for range c.o.Streams {
		r, err := c.mount.NewRing(context.Background(), usrbio.RingOptions{Entries: c.o.Entries, Write: write})
		if err != nil {
			return nil, err
		}
		l.rings = append(l.rings, newRing(l, r))
	}
	return l, nil
}

func (c *conn) lane(write bool) *lane {
	if write {
		return c.write
	}
	return c.read
}

// register tells the daemon of memory. ENOENT: the name has gone, or is that of another
// object by now, which is none of ours to write to.
func (c *conn) register(mem memory) error {
	iov, err := c.mount.RegisterIov(context.Background(), mem.name, usrbio.IovOptions{})
	if err != nil {
		return err
	}
	if ino, err := inodeOf(mem.name); err != nil || ino != mem.ino {
		return errors.Join(fmt.Errorf("ringio: %s is another object by now: %w", mem.name, syscall.ENOENT), iov.Close(context.Background()))
	}
	if iov.Size() < int64(len(mem.bytes)) {
		return errors.Join(fmt.Errorf("ringio: %s has %d bytes and is said to be mapped to %d: %w",
			mem.name, iov.Size(), len(mem.bytes), syscall.EINVAL), iov.Close(context.Background()))
	}
	all := append([]known(nil), *c.known.Load()...)
	all = append(all, known{mem, iov})
	c.known.Store(&all)
	return nil
}

// inPlace is the iov that holds buf, and where; nil if none does.
func (c *conn) inPlace(buf []byte) (*usrbio.Iov, int64) {
	for _, k := range *c.known.Load() {
		if at, ok := shm.OffsetIn(k.bytes, buf); ok {
			return k.iov, at
		}
	}
	return nil, 0
}

// lost says that the daemon is.
func (c *conn) lost(err error) { c.die(staleFor(err)) }

// die ends the connection; the keeper does it. The first reason counts.
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

// keep looks after what waits, until the connection dies, and then ends it.
func (c *conn) keep() {
	defer close(c.gone)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, l := range []*lane{c.read, c.write} {
		for _, r := range l.rings {
			c.waiters.Go(func() {
				if err := r.wait(ctx); err != nil {
					c.lost(err)
				}
			})
		}
	}
	for range 2 * c.o.Streams {
		c.copiers.Go(c.copy)
	}
	c.lookAfter()
	cancel()
	c.waiters.Wait()
	harmless := errors.Is(c.why, ErrStale) && c.daemon.exited()
	if n := c.read.cutOff(c.why, harmless) + c.write.cutOff(c.why, harmless); n > 0 {
		c.inUse = kv.Abandoned(fmt.Sprintf("the daemon of %s has not answered %d requests", c.mount.Path(), n))
	}
	close(c.copies) // nobody begins anything any more
	c.copiers.Wait()
	c.daemon.close()
	c.err = c.mount.Close(context.Background())
}

// lookAfter looks at both lanes from time to time until the connection dies.
func (c *conn) lookAfter() {
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

// copy is a copier.
func (c *conn) copy() {
	for job := range c.copies {
		job.copy()
		job.r.l.copied(job.r, job.i)
	}
}

// copy moves the bytes. The entry is the copier's for as long as it is copying.
func (j copyJob) copy() {
	e := &j.r.entries[j.i]
	staged := j.r.l.staging.Bytes()[e.chunk:]
	if j.r.l.write {
		copy(staged[:e.n], e.m.op.Buf[e.from:])
	} else {
		copy(e.m.op.Buf[e.from:], staged[:e.got])
	}
}

// close lets what has begun come to its end and then ends the connection. A daemon
// that hangs is not waited for longer than the engine's time once more.
func (c *conn) close() error {
	reads, writes := c.read.close(), c.write.close()
	<-reads
	<-writes
	c.die(kv.ErrClosed)
	select {
	case <-c.gone:
		return errors.Join(c.err, c.inUse)
	case <-time.After(c.o.Timeout):
		return fmt.Errorf("ringio: the daemon of %s does not answer: %w", c.mount.Path(), kv.ErrTimeout)
	}
}

// bound runs what the daemon must answer, and may never. Once it has not answered in
// time it is not waited for again: who has a thousand files to close has not the time
// a thousand times.
func (c *conn) bound(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := fn()
		c.hung.Store(false)
		done <- err
	}()
	patience := c.o.Timeout
	if c.hung.Load() {
		patience = 0
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		c.hung.Store(true)
		return kv.ErrTimeout
	}
}

// serves tells whether the connection is the one to use although the daemon gave that
// error: a file of another mount, say, is not of the daemon that has come in its place.
func (c *conn) serves(err error) bool {
	switch {
	case c.dead():
		return false
	case !errors.Is(err, syscall.EXDEV) && !errors.Is(err, usrbio.ErrDaemonGone):
		return true
	}
	// The mount point may by now be that of a daemon that hangs: the call is left to
	// itself then, and the connection is not the one to use.
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

// inodeOf tells objects of one name apart.
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
