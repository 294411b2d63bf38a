package ringio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/usrbio"
)

// Options of New. A field that is zero has its default.
type Options struct {
	// Mount is any path on the 3FS. Required.
	Mount string

	// Streams is how many rings there are for each direction, and as many copiers for
	// each. Default 2.
	Streams int

	// Entries is how many requests each ring has in flight. Default 64.
	Entries int

	// BufferBytes is how much of /dev/shm the staging iovs take, half for each
	// direction. Default 64 MiB.
	BufferBytes int64

	// WaitingQueueDepth is how many moves in each direction may wait for a ring
	// before Do does. Default 1024.
	WaitingQueueDepth int

	// Timeout is how long a request may take. Default 30 s.
	Timeout time.Duration

	// NUMANode binds the staging iovs to a node.
	NUMANode *int
}

const (
	mostPieceBytes  = 1 << 20
	leastPieceBytes = 4 << 10
)

// chunkBytes is the size of a piece of the staging iov: a 16th of each direction's
// half, so that there are always some on their way.
func (o *Options) chunkBytes() int {
	return int(min(mostPieceBytes, o.BufferBytes/32)) &^ (leastPieceBytes - 1)
}

func (o *Options) fillDefaults() error {
	if o.Streams == 0 {
		o.Streams = 2
	}
	if o.Entries == 0 {
		o.Entries = 64
	}
	if o.BufferBytes == 0 {
		o.BufferBytes = 64 << 20
	}
	if o.WaitingQueueDepth == 0 {
		o.WaitingQueueDepth = 1024
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	switch {
	case o.Mount == "":
		return errors.New("ringio: no mount given")
	case o.Streams < 1 || o.Streams > 1024:
		return fmt.Errorf("ringio: %d streams; choose 1 to 1024", o.Streams)
	case o.Entries < 1 || o.Entries > 4096:
		return fmt.Errorf("ringio: rings of %d entries; choose 1 to 4096", o.Entries)
	case o.BufferBytes < 32*leastPieceBytes:
		return fmt.Errorf("ringio: a staging buffer of %d bytes; choose at least %d", o.BufferBytes, 32*leastPieceBytes)
	case o.WaitingQueueDepth < 1:
		return fmt.Errorf("ringio: a waiting queue of %d; choose at least 1", o.WaitingQueueDepth)
	case o.Timeout < time.Millisecond:
		return fmt.Errorf("ringio: a timeout of %v; choose at least a millisecond", o.Timeout)
	}
	return nil
}

// Engine is a transfer.Engine. Its files are those of one 3FS mount.
type Engine struct {
	o Options

	mu       sync.Mutex // while it is held, only calls with a timeout go to a daemon
	memories []memory
	conn     *conn     // the latest; nil before the first
	making   chan made // brings the next one; nil while none is being made
	failed   error     // of the latest attempt to make one
	retry    time.Time // no attempt is made before
	inUse    error     // says that an earlier daemon may still use memory
	closed   bool
}

// memory is what was registered.
type memory struct {
	name  string
	bytes []byte
	ino   uint64 // of the object that had the name when it was registered
}

// made is the outcome of an attempt to connect.
type made struct {
	c   *conn
	err error
}

var _ transfer.Engine = (*Engine)(nil)

// retryGap is the least time between attempts to reach a new daemon.
const retryGap = 250 * time.Millisecond

// New connects to the daemon behind o.Mount.
func New(o Options) (*Engine, error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	e := &Engine{o: o}
	if _, err := e.reach(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// Open registers an open file of the mount with the present daemon. On an error f stays
// the caller's. ErrStale says that f was opened before this daemon came.
func (e *Engine) Open(f *os.File) (transfer.File, error) {
	c, r, err := e.register(f)
	if c != nil && err != nil && !c.serves(err) {
		c.lost(err)
		c, r, err = e.register(f)
	}
	switch {
	case err == nil:
		return &file{f, c, r}, nil
	case errors.Is(err, usrbio.ErrDaemonGone),
		(errors.Is(err, syscall.EXDEV) || errors.Is(err, usrbio.ErrNotMounted)) && orphan(f):
		err = staleFor(err)
	}
	return nil, &os.PathError{Op: "open", Path: f.Name(), Err: err}
}

// register registers f with the daemon. It does not hold the lock meanwhile: the daemon
// may never answer.
func (e *Engine) register(f *os.File) (*conn, *usrbio.File, error) {
	e.mu.Lock()
	c, err := e.reach()
	e.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	r, err := c.mount.Register(context.Background(), f)
	return c, r, err
}

// reach returns the connection, a new one if the daemon of the latest has gone. The caller
// holds mu.
func (e *Engine) reach() (*conn, error) {
	switch {
	case e.closed:
		return nil, kv.ErrClosed
	case e.conn != nil && !e.conn.dead():
		return e.conn, nil
	case time.Now().Before(e.retry):
		return nil, e.failed
	}
	if e.making == nil {
		e.making = make(chan made, 1)
		go replace(e.conn, &e.o, slices.Clone(e.memories), e.making)
	}
	select {
	case m := <-e.making:
		e.making = nil
		if m.err == nil {
			if e.conn != nil {
				e.inUse = cmp.Or(e.inUse, e.conn.inUse)
			}
			e.conn = m.c
			return m.c, nil
		}
		e.failed = m.err
	case <-time.After(e.o.Timeout):
		e.failed = fmt.Errorf("ringio: connect: the daemon of %s does not answer, or the one before it has not quite ended: %w", e.o.Mount, kv.ErrTimeout)
	}
	e.retry = time.Now().Add(retryGap)
	return nil, e.failed
}

// replace connects once nothing is left of the earlier connection. A daemon that hangs
// holds it up for as long as it hangs; reach and Close do not wait for it longer than the
// timeout.
func replace(old *conn, o *Options, memories []memory, to chan<- made) {
	if old != nil {
		<-old.gone
	}
	c, err := connect(o, memories)
	to <- made{c, err}
}

// Do implements transfer.Engine.
func (e *Engine) Do(ctx context.Context, ops []transfer.Op) {
	for len(ops) > 0 {
		first, ok := ops[0].File.(*file)
		if !ok {
			ops[0].Done(0, fmt.Errorf("ringio: move: a %T is not a file of this engine: %w", ops[0].File, syscall.EINVAL))
			ops = ops[1:]
			continue
		}
		n := 1
		for n < len(ops) && ops[n].Write == ops[0].Write && of(ops[n].File, first.c) {
			n++
		}
		first.c.toward(ops[0].Write).take(ctx, ops[:n])
		ops = ops[n:]
	}
}

// of reports whether a file is one of a connection.
func of(f transfer.File, c *conn) bool {
	x, ok := f.(*file)
	return ok && x.c == c
}

// Register implements transfer.Engine. EINVAL says that mem is larger than the object.
func (e *Engine) Register(name string, mem []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return kv.ErrClosed
	}
	m := memory{name: name, bytes: mem}
	for _, known := range e.memories {
		if at, ok := shm.OffsetIn(known.bytes, mem); ok && at == 0 && known.name == name && len(known.bytes) == len(mem) {
			return nil
		}
	}
	var err error
	if m.ino, err = inodeOf(name); err != nil {
		return err
	}
	if err := e.tell(m); err != nil {
		return err
	}
	e.memories = append(e.memories, m)
	return nil
}

// tell registers memory with the present daemon. The caller holds mu.
func (e *Engine) tell(m memory) error {
	c, err := e.reach()
	if err != nil {
		return err
	}
	if err = c.register(m); err == nil || c.serves(err) {
		return err
	}
	c.lost(err)
	if c, err = e.reach(); err != nil {
		return err
	}
	return c.register(m)
}

// Close implements transfer.Engine. Its error is a kv.ErrAbandoned if a daemon, perhaps an
// earlier one, may still use memory that was registered.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	if making := e.making; making != nil {
		go func() { // it takes as long as replace does
			if m := <-making; m.err == nil {
				_ = m.c.close() // nobody waits for the connection any more
			}
		}()
	}
	if e.conn == nil {
		return nil
	}
	return errors.Join(e.conn.close(), e.inUse)
}
