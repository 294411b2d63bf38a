package ringserver

import (
	"errors"
	"math"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// execute moves the bytes of a batch of one ring and posts the completions.
func (s *Server) execute(r *ring, batch []*request) {
	var files borrowed
	var bytes uint64
	start := time.Now()
	for _, q := range batch {
		s.executeOne(r, q, &files)
		bytes += q.args.Len
		files.written() // before the completion can be seen
		q.done()
	}
	slow := files.waited && time.Since(start) > deviceTime(len(batch), bytes)
	r.slow.Store(slow)
	r.poller.noteSlow(slow)
	r.complete(batch)
	files.release()
}

// errStopping answers requests that arrive while the daemon is stopping.
const errStopping = syscall.ESHUTDOWN

// deviceTime returns a time that only a batch that waited for a device exceeds: several
// times the cost of its system calls and copies.
func deviceTime(requests int, bytes uint64) time.Duration {
	return 30*time.Microsecond + time.Duration(requests)*4*time.Microsecond + time.Duration(bytes/2)
}

// borrowed holds the file and the view of the previous request for the next one:
// requests in a batch mostly share them.
type borrowed struct {
	file    File
	waited  bool // the batch may have waited for a device
	ino     uint64
	err     error
	touched bool // written, but Written has not been called

	iov   *iov
	iovID wire.UUID
	view  *view
}

func (b *borrowed) written() {
	if b.touched {
		b.file.Written()
		b.touched = false
	}
}

func (b *borrowed) release() {
	b.written()
	if b.file != nil {
		b.file.Release()
	}
	if b.view != nil {
		b.view.release()
	}
	*b = borrowed{}
}

// borrow sets b.file to the file of a request. Files.Acquire checks the rights of the
// ring's user.
func (b *borrowed) borrow(s *Server, r *ring, ino uint64) error {
	if (b.file != nil || b.err != nil) && b.ino == ino {
		return b.err
	}
	b.written()
	if b.file != nil {
		b.file.Release()
		b.file = nil
	}
	b.ino = ino
	var f File
	if f, b.err = s.files.Acquire(ino, r.cred, r.write); b.err == nil {
		b.file = f
	}
	return b.err
}

// viewOf returns the iov of a request and its current view; either may be nil.
func (b *borrowed) viewOf(s *Server, id wire.UUID) (*iov, *view) {
	if b.iov == nil || b.iovID != id {
		b.dropView()
		if b.iov = s.table.buffer(id); b.iov != nil {
			b.iovID = id
			b.iov.lastUse.Store(time.Now().Unix())
		}
	}
	if b.iov != nil && b.view == nil {
		b.view = b.iov.acquire()
	}
	return b.iov, b.view
}

func (b *borrowed) dropView() {
	if b.view != nil {
		b.view.release()
	}
	b.iov, b.view = nil, nil
}

// executeOne executes a request and sets q.result.
func (s *Server) executeOne(r *ring, q *request, b *borrowed) {
	if q.state.Load() != stateTaken {
		return
	}
	if err := s.validate(r, q, b); err != nil {
		q.result = errnoResult(err)
		return
	}
	if q.len == 0 {
		q.result = 0
		return
	}
	for {
		q.moved.Store(0)
		if !q.state.CompareAndSwap(stateTaken, stateRunning) {
			return // expired, or requeued for another worker
		}
		n, err := s.move(r, b, q)
		if invariants.Enabled {
			invariants.Check(q.view.refs.Load() > 0, "request %d: its view was unmapped while it ran", q.index)
		}
		if err != nil {
			q.result = errnoResult(err)
		} else {
			q.result = n
		}
		if r.write {
			b.touched = b.touched || n > 0
			return
		}
		// Another request's deadline may have detached a page that this request
		// shares: read again into the iov's new view.
		if !q.view.isSpoiled(q.off, q.len) || !q.state.CompareAndSwap(stateRunning, stateTaken) {
			return
		}
		b.view.release()
		b.view = q.iov.acquire()
		if q.view = b.view; q.view == nil {
			b.iov = nil
			q.result = -int64(syscall.EINVAL) // the iov was unregistered meanwhile
			return
		}
	}
}

// validate checks what the client wrote, in the order of 4.8. It borrows the file and
// finds the bytes in the client's memory.
func (s *Server) validate(r *ring, q *request, b *borrowed) error {
	if q.badIndex {
		return syscall.EINVAL
	}
	if r.write && s.readonly(r.cred.UID) {
		return syscall.EROFS
	}
	if err := b.borrow(s, r, q.args.FileIno); err != nil {
		return err
	}
	buf, v := b.viewOf(s, q.args.BufID)
	if v == nil {
		return syscall.EINVAL
	}
	// A ring acts as its uid and must not reach another user's buffer.
	if buf.uid != r.cred.UID {
		return syscall.EACCES
	}
	if err := buf.validate(q.args.BufOff, q.args.Len); err != nil {
		return err
	}
	if q.args.FileOff > math.MaxInt64 || q.args.Len > math.MaxInt64-q.args.FileOff {
		return syscall.EFBIG
	}
	q.iov, q.view, q.off, q.len = buf, v, int64(q.args.BufOff), int64(q.args.Len)
	return nil
}

// pieceBytes is how much is moved at once. It bounds how long a request runs past its
// deadline and how much memory it takes to detach its buffer.
const pieceBytes = 16 << 20

// move moves the bytes of a request between the file and the client's window, with
// one system call for each piece.
func (s *Server) move(r *ring, b *borrowed, q *request) (done int64, err error) {
	fileOff, file := int64(q.args.FileOff), b.file
	if !r.write && r.flags&wire.ForbidReadHoles != 0 {
		hole, err := blockio.HasHole(file.FD(), fileOff, q.len)
		if err != nil {
			return 0, err
		}
		if hole {
			return 0, syscall.ENODATA
		}
	}
	for done < q.len {
		// Store the count before checking the state: a deadline that ends the request
		// then knows where the piece begins that this worker may have started.
		q.moved.Store(done)
		if q.state.Load() != stateRunning {
			return done, syscall.ETIMEDOUT
		}
		size := min(q.len-done, pieceBytes)
		w := q.view.m.Window(q.off+done, size)
		var n int64
		if r.write {
			n, err = s.mover.Write(file, w, q.off+done, fileOff+done)
			b.waited = true
		} else {
			var waited bool
			n, waited, err = s.mover.Read(file, w, q.off+done, fileOff+done)
			b.waited = b.waited || waited
		}
		done += n
		if err != nil || n < size {
			return done, err
		}
	}
	return done, nil
}

// errnoResult returns the result of a completion that reports err: its errno, or EIO if
// it has none, negated.
func errnoResult(err error) int64 {
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno == 0 {
		errno = syscall.EIO
	}
	return -int64(errno)
}
