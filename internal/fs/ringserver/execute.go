package ringserver

import (
	"errors"
	"math"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// execute moves the next pieces of a job's requests and posts the completions of those
// that are done. It reports whether others were queued again.
func (s *Server) execute(w *worker, j job) (again bool) {
	r := j.ring
	files := borrowed{unmaps: &s.unmaps, check: &w.check, sums: &w.sums}
	start := time.Now()
	for _, q := range j.batch {
		w.beginRequest(q.args.FileIno)
		s.executeOne(w, r, q, &files)
		files.written() // before the completion can be seen
		if !q.unfinished {
			q.done()
		}
	}
	slow := files.waited && time.Since(start) > deviceTime(len(j.batch), j.bytes)
	r.slow.Store(slow)
	r.poller.noteSlow(slow)
	var trace Batch
	traced := s.opts.Trace != nil
	if traced {
		trace = s.batchOf(r, j, start, files.waited)
	}
	again = r.complete(j.batch)
	if traced {
		s.opts.Trace(trace)
	}
	files.release()
	return again
}

// errStopping answers requests that arrive while the daemon is stopping.
const errStopping = syscall.ESHUTDOWN

// deviceTime returns a time that only a batch that waited for a device exceeds: several
// times the cost of its system calls and copies.
func deviceTime(requests int, bytes int64) time.Duration {
	return 30*time.Microsecond + time.Duration(requests)*4*time.Microsecond + time.Duration(bytes/2)
}

// borrowed holds the file and the view of the previous request for the next one:
// requests in a batch mostly share them.
type borrowed struct {
	unmaps *unmapper

	file    File
	counted *directoryTraffic // of file's directory
	waited  bool              // the batch may have waited for a device
	ino     uint64
	err     error
	touched bool // written, but Written has not been called
	read    bool // HasRead was called

	grew     bool  // written, but Settle has not been called
	reserved int64 // for that

	summing int64         // how long checksums took in this turn, by the clock's ticks
	timed   bool          // the call is timed exactly
	hashing time.Duration // how long checksums took in a call that is

	check *integrity.Read // these are the worker's
	sums  *integrity.Write

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
	b.settle()
	if b.file != nil {
		b.file.Release()
	}
	b.dropView()
	*b = borrowed{}
}

// borrow sets b.file to the file of a request. Files.Acquire checks the rights of the
// ring's user.
func (b *borrowed) borrow(s *Server, r *ring, ino uint64) error {
	if (b.file != nil || b.err != nil) && b.ino == ino {
		return b.err
	}
	b.written()
	b.settle()
	if b.file != nil {
		b.file.Release()
		b.file = nil
	}
	b.ino, b.read = ino, false
	var f File
	if f, b.err = s.files.Acquire(ino, r.cred, r.write); b.err == nil {
		b.file, b.counted = f, s.traffic.Of(r.cred.UID, f.Directory())
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
		b.view.releaseBy(b.unmaps)
	}
	b.iov, b.view = nil, nil
}

// executeOne moves the next piece of a request. It sets q.result, or q.unfinished if more
// pieces follow.
func (s *Server) executeOne(w *worker, r *ring, q *request, b *borrowed) {
	if !q.state.CompareAndSwap(stateTaken, stateBegun) {
		return // expired, or queued again for another worker
	}
	tick := s.clock.tickedAt()
	if err := s.prepare(r, q, b); err != nil {
		q.spend(s.clock, spentOpening, tick)
		q.result = s.failed(r, q, err)
		return
	}
	if q.len == 0 {
		q.result = 0
		return
	}
	tick = q.spend(s.clock, spentOpening, tick)
	reserved, err := s.reserve(w, r, q, b)
	tick = q.spend(s.clock, spentRoom, tick)
	if err != nil {
		q.result = s.failed(r, q, noRoom{err})
		return
	}
	b.grew, b.reserved = b.grew || r.write, b.reserved+reserved
	if !q.state.CompareAndSwap(stateBegun, stateRunning) {
		return
	}
	before, opened := q.moved.Load(), b.file.Opened()
	n, err := s.movePiece(r, b, q)
	if b.file.Renew(opened, err) && q.state.Load() == stateRunning {
		n, err = s.movePiece(r, b, q)
	}
	q.spend(s.clock, spentDevice, tick)
	q.spent[spentDevice] -= b.summing
	q.spent[spentSums] += b.summing
	b.summing = 0
	if errors.Is(err, syscall.EBADF) {
		err = syscall.ESTALE // it is the daemon's descriptor that is bad
	}
	if invariants.Enabled {
		invariants.Check(q.view.refs.Load() > 0, "request %d: its view was unmapped while it ran", q.index)
	}
	b.touched = b.touched || r.write && n > 0
	if !r.write && n > 0 && !b.read {
		b.read = true
		b.file.HasRead()
	}
	if !r.write && n > 0 && before == 0 && q.args.FileOff == 0 {
		b.file.ReadFromStart(r.cred.UID)
	}
	moved := before + n
	switch {
	case err != nil:
		q.result = s.failed(r, q, err)
	case n == q.turn() && moved < q.len:
		s.continueAt(q, moved)
		return
	default:
		q.result = moved
	}
	// Another request's deadline may have detached a page that this request shares: read
	// again into the iov's new view.
	if !r.write && q.view.isSpoiled(q.off, q.len) {
		s.repeat(q, b)
	}
}

// continueAt has the rest of a request, from moved on, served in another turn.
func (s *Server) continueAt(q *request, moved int64) {
	// Not while its state is running: its deadline would look for a piece that nobody
	// has begun.
	if q.state.CompareAndSwap(stateRunning, stateBegun) {
		q.moved.Store(moved)
		q.unfinished = true
		q.state.CompareAndSwap(stateBegun, stateTaken)
	}
}

// repeat has a whole read served again, into the current view of its iov.
func (s *Server) repeat(q *request, b *borrowed) {
	if !q.state.CompareAndSwap(stateRunning, stateBegun) {
		return // expired
	}
	b.dropView()
	current := q.iov.acquire()
	if current == nil {
		q.result = -int64(syscall.EINVAL) // the iov was unregistered meanwhile
		return
	}
	q.view.releaseBy(b.unmaps)
	q.view = current
	q.moved.Store(0)
	q.unfinished = true
	q.state.CompareAndSwap(stateBegun, stateTaken)
}

// prepare makes a request ready to move bytes: before its first piece everything that the
// client wrote is checked, before the others its rights.
func (s *Server) prepare(r *ring, q *request, b *borrowed) error {
	if q.view == nil {
		return s.validate(r, q, b)
	}
	if r.write && s.readonly(r.cred.UID) {
		return syscall.EROFS
	}
	return b.borrow(s, r, q.args.FileIno)
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
	q.countedIn.Store(b.counted)
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
	q.iov, q.view, q.off, q.len = buf, v.hold(), int64(q.args.BufOff), int64(q.args.Len)
	return nil
}

// movePiece moves the next piece of a request between the file and the client's window,
// with one system call.
func (s *Server) movePiece(r *ring, b *borrowed, q *request) (n int64, err error) {
	moved := q.moved.Load()
	fileOff := int64(q.args.FileOff)
	if !r.write && r.flags&wire.ForbidReadHoles != 0 && moved == 0 {
		hole, err := blockio.HasHole(b.file.FD(), fileOff, q.len)
		if err != nil {
			return 0, err
		}
		if hole {
			return 0, syscall.ENODATA
		}
	}
	off, size := q.off+moved, q.turn()
	w := q.view.m.Window(off, size)
	var waited bool
	if timed := size >= timedBytes || r.slow.Load(); timed {
		defer func(began time.Time) {
			if waited {
				s.device[directionOf(r.write)].Observe(time.Since(began) - b.hashing)
			}
		}(time.Now())
		b.timed, b.hashing = true, 0
		defer func() { b.timed = false }()
	}
	if r.write {
		sums := b.file.Sums().BeginWrite(b.sums, b.file.FD(), fileOff+moved, size)
		n, waited, err = s.write(b, sums, w, off, fileOff+moved)
		// If its deadline has passed, something else may have been in the window.
		sums.End(err == nil && n == size && q.state.Load() == stateRunning)
	} else {
		n, waited, err = s.read(b, w, off, fileOff+moved)
	}
	b.waited = b.waited || waited
	return n, err
}

// timeSums begins to take or compare checksums, until the function that it returns is called.
func (b *borrowed) timeSums(c *clock) (end func()) {
	tick := c.tickedAt()
	var began time.Time
	if b.timed {
		began = time.Now()
	}
	return func() {
		b.summing += c.tickedAt() - tick
		if b.timed {
			b.hashing += time.Since(began)
		}
	}
}

// write stores w, which is at offset off of its iov, in a file, and takes its checksums.
func (s *Server) write(b *borrowed, sums *integrity.Write, w shm.Window, off, fileOff int64) (n int64, waited bool, err error) {
	if sums == nil {
		return s.mover.Write(b.file, w, off, fileOff)
	}
	var hashed int64 // of w
	hash := func(n int64) {
		defer b.timeSums(s.clock)()
		sums.Hash(w.From(hashed).First(n - hashed))
		hashed = n
	}
	n, waited, err = s.mover.WritePieces(b.file, w, off, fileOff, blockio.Pieces{Bytes: integrity.RangeBytes, Moved: hash})
	if err == nil {
		hash(n)
	}
	return n, waited, err
}

// failed returns the result of a request that fails with err.
func (s *Server) failed(r *ring, q *request, err error) int64 {
	s.noteFailed(r, q, err)
	return errnoResult(s.opts.Health.Answer(err))
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
