package usrbio

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Priority is a class of rings. The daemon serves higher classes first.
type Priority int8

// The three priorities of 3FS.
const (
	PriorityHigh   Priority = -1
	PriorityNormal Priority = 0
	PriorityLow    Priority = 1
)

// RingOptions are the options of a ring. The zero value is a ring of 128 entries
// that reads and in which the daemon takes requests as they come.
type RingOptions struct {
	// Entries is the number of requests that can be in flight. 0: 128.
	Entries int

	// Write makes a ring that writes to files. Without it the ring reads.
	Write bool

	// IODepth makes the daemon take requests in batches. 0: whatever is queued.
	// D > 0: exactly D; it waits forever while fewer are queued. D < 0: at most
	// -D; it waits for them up to Timeout. Leave it at 0 unless you have a reason.
	IODepth int

	// Timeout applies to an IODepth below 0; it is rounded up to a millisecond. A
	// real 3FS ignores it and waits for a full batch, so leave it at 0 there.
	Timeout time.Duration

	// Priority of the ring's requests.
	Priority Priority

	// AllowReadUncommitted lets reads return data that a write has not committed.
	AllowReadUncommitted bool

	// ForbidReadHoles makes a read that meets a hole fail with ENODATA. Without
	// it holes read as zeros.
	ForbidReadHoles bool
}

const (
	defaultEntries = 128
	maxEntries     = 1 << 20

	step     = time.Millisecond      // between checks while requests are in flight
	idleStep = 10 * time.Millisecond // while none is

	probeGap     = 250 * time.Millisecond // between probes of the daemon while requests are in flight
	idleProbeGap = time.Second            // while none is
)

// link returns the registration for these options.
func (o RingOptions) link() (l wire.Link, entries int, err error) {
	if entries = o.Entries; entries == 0 {
		entries = defaultEntries
	}
	switch {
	case entries < 1 || entries > maxEntries:
		return l, 0, fmt.Errorf("%d entries: %w", o.Entries, syscall.EINVAL)
	case o.IODepth > entries || o.IODepth < -maxEntries:
		return l, 0, fmt.Errorf("io depth %d with %d entries: %w", o.IODepth, entries, syscall.EINVAL)
	case o.Timeout < 0 || o.Timeout > math.MaxInt32*time.Millisecond:
		return l, 0, fmt.Errorf("timeout %v: %w", o.Timeout, syscall.EINVAL)
	}
	l = wire.Link{
		ID:        wire.NewUUID(),
		Ring:      true,
		Write:     o.Write,
		IODepth:   int32(o.IODepth),
		TimeoutMs: int32((o.Timeout + time.Millisecond - 1) / time.Millisecond),
		Priority:  wire.Priority(o.Priority),
	}
	if o.AllowReadUncommitted {
		l.Flags |= wire.AllowReadUncommitted
	}
	if o.ForbidReadHoles {
		l.Flags |= wire.ForbidReadHoles
	}
	return l, entries, nil
}

// Ring carries requests to the daemon and completions back.
//
// Its memory belongs to this process and has no name by the time NewRing returns,
// so only the daemon can reach it. The daemon is untrusted nevertheless: what it
// writes is copied, checked and used, in that order, and an object that it shrinks
// is an ErrProtocol.
type Ring struct {
	// Every access to mem is inside shm.Guard.
	m       *Mount
	link    string
	write   bool
	layout  wire.Layout
	mem     *shm.Mapping
	arrived shm.Sem       // posted by the daemon after completions
	submit  *shm.NamedSem // posted by us, shared by all rings of a priority
	slots   slots

	prep    sync.Mutex
	sqeHead atomic.Int32 // written by us only, under prep; the copy in the ring is for the daemon
	ticket  uint64       // of the latest request

	turn       chan struct{} // holds a token while a goroutine is in Wait or unmaps the memory
	cqeTail    int32         // written by the holder of turn only; the copy in the ring is for the daemon
	fast       bool          // the last Wait got its completions in quick succession; under turn
	quietSince time.Time     // when completions ceased, or the last probe began; under turn

	batch batch // of Do

	unmapping atomic.Bool // the memory may be gone for the next holder of turn
	closing   once
	end       atomic.Pointer[error] // why the ring is unusable; nil while it is usable
	probing   atomic.Bool
	unmounted atomic.Pointer[error] // what says that the daemon has ended with which the ring was registered
	gap       gap                   // under turn
}

// NewRing makes a ring. ENOSPC means that /dev/shm is too small for it, ENOENT for the daemon's semaphore means that this process
// and the daemon do not share /dev/shm. If the daemon does not answer, the error
// is ctx.Err() or, after 30 seconds, ETIMEDOUT.
func (m *Mount) NewRing(ctx context.Context, o RingOptions) (*Ring, error) {
	const op = "new ring"
	l, entries, err := o.link()
	if err != nil {
		return nil, explain(op, err)
	}
	submit, err := m.submitSem(ctx, l.Priority)
	if err != nil {
		return nil, explain(op, err)
	}
	object := objectName()
	mem, err := shm.Create(object, wire.RingBytes(entries), 0o600)
	if err != nil {
		return nil, explain(op, err)
	}
	if err = mem.Reserve(); err != nil { // or the first Prepare would fault where /dev/shm is full
		err = fmt.Errorf("reserve its memory: %w", err)
	} else {
		err = m.registrar.link(ctx, filepath.Join(shm.Dir, object), l.Name())
	}
	shm.Remove(object) // the daemon has it by now, or never will
	if err == syscall.EINVAL && entries > wire.MostEntries {
		err = fmt.Errorf("%d entries, where kv3fs serves at most %d: %w", entries, wire.MostEntries, err)
	}
	if err != nil {
		mem.Unmap()
		return nil, explain(op, err)
	}
	layout, _ := wire.LayoutOf(mem.Len())
	r := &Ring{
		m:       m,
		link:    l.Name(),
		write:   o.Write,
		layout:  layout,
		mem:     mem,
		arrived: mem.Sem(layout.SemOff()),
		submit:  submit,
		slots:   newSlots(entries),
		turn:    make(chan struct{}, 1),
		batch:   batch{turn: make(chan struct{}, 1)},
	}
	if err := adopt(m, &m.rings, r); err != nil {
		r.mem.Unmap()
		_ = r.unregister(ctx) // err is the first error
		return nil, err
	}
	return r, nil
}

// Entries returns how many requests can be in flight.
func (r *Ring) Entries() int { return r.slots.n }

// InFlight returns the number of requests that are prepared and not yet collected
// by Wait.
func (r *Ring) InFlight() int { return r.slots.inFlight() }

// Prepare queues one request. The daemon may begin at once; Submit makes sure that
// it does. Userdata comes back in the Completion, as does slot, the lowest free
// number in [0, Entries). Prepare ignores Result.
//
// After an error nothing is queued and the memory is the caller's. ErrRingFull
// (EAGAIN): Wait, then try again. EINVAL: a range that does not fit, or file, iov
// and ring belong to different mounts. EBADF: the file is closed. EACCES: it was
// not opened for this direction. ErrDaemonGone, ErrProtocol, os.ErrClosed: the ring
// is unusable.
func (r *Ring) Prepare(q Request) (slot int, err error) {
	f, v := q.File, q.Iov
	switch {
	case f == nil || v == nil || f.m != r.m || v.m != r.m:
		return -1, errOtherMount
	case q.Bytes <= 0:
		return -1, errEmpty
	case q.FileOffset < 0 || q.FileOffset > math.MaxInt64-q.Bytes:
		return -1, errFileRange
	case q.IovOffset < 0 || q.IovOffset > v.sizeBytes || q.Bytes > v.sizeBytes-q.IovOffset:
		return -1, errIovRange
	case v.blockBytes > 0 && q.IovOffset/v.blockBytes != (q.IovOffset+q.Bytes-1)/v.blockBytes:
		return -1, errBlock
	case v.closed.Load():
		return -1, errIovClosed
	case f.closed.Load():
		return -1, errFileClosed
	case r.write && f.access == syscall.O_RDONLY:
		return -1, errReadOnly
	case !r.write && f.access == syscall.O_WRONLY:
		return -1, errWriteOnly
	}
	r.prep.Lock()
	defer r.prep.Unlock()
	if end := r.end.Load(); end != nil {
		return -1, *end
	}
	if slot = r.slots.lowest(); slot < 0 {
		return -1, ErrRingFull
	}
	r.ticket++
	args := wire.Args{
		BufID:    wire.UUID(v.id),
		BufOff:   uint64(q.IovOffset),
		FileIno:  f.ino,
		FileOff:  uint64(q.FileOffset),
		Len:      uint64(q.Bytes),
		Userdata: r.ticket,
	}
	// Taken before it is published: the completion may arrive at any moment.
	r.slots.take(slot, issued{ticket: r.ticket, userdata: q.Userdata, length: q.Bytes, iov: held(v)})
	if err := r.publish(int32(slot), &args); err != nil {
		r.slots.abandon(slot)
		return -1, err
	}
	return slot, nil
}

// held returns v in builds that assert invariants, else nil.
func held(v *Iov) *Iov {
	if invariants.Enabled {
		return v
	}
	return nil
}

// publish fills an argument slot and a submission entry of the ring, and moves the
// head past the entry.
func (r *Ring) publish(slot int32, args *wire.Args) error {
	if invariants.Enabled {
		invariants.Check(!r.prep.TryLock(), "publish without prep held")
		invariants.Check(r.layout.Valid(r.sqeHead.Load()), "submission head %d", r.sqeHead.Load())
	}
	var (
		argsBytes [wire.ArgsBytes]byte
		sqeBytes  [wire.SqeBytes]byte
		tail      int32
		full      bool
	)
	args.Encode(&argsBytes)
	sqe := wire.Sqe{Index: slot, Userdata: args.Userdata}
	sqe.Encode(&sqeBytes)
	head := r.sqeHead.Load()
	next := r.layout.Next(head)
	fault := shm.Guard(func() {
		tail = r.mem.LoadInt32(wire.OffSqeTail)
		// A real 3FS retires submissions in order, so the queue may be full although
		// a slot is free (4.7).
		if full = next == tail; full || !r.layout.Valid(tail) {
			return
		}
		r.mem.CopyIn(r.layout.ArgsOff(slot), argsBytes[:])
		r.mem.CopyIn(r.layout.SqeOff(head), sqeBytes[:])
		r.mem.StoreInt32(wire.OffSqeHead, next) // publishes both
	})
	switch {
	case fault != nil:
		return r.fail(fmt.Errorf("%w: %w", ErrProtocol, fault))
	case full:
		return ErrRingFull
	case !r.layout.Valid(tail):
		return r.fail(fmt.Errorf("%w: submission tail %d", ErrProtocol, tail))
	}
	r.sqeHead.Store(next)
	return nil
}

// Submit wakes the daemon for the requests that have been prepared. One Submit is
// enough for any number of them. It wakes through a semaphore that only processes of this
// user can open; if one of them has damaged it, kv3fs finds the requests some 50 ms later.
func (r *Ring) Submit() error {
	r.prep.Lock()
	defer r.prep.Unlock()
	if end := r.end.Load(); end != nil {
		return *end
	}
	_ = shm.Guard(r.submit.Post) // a shrunken one is repaired by the daemon, which looks meanwhile
	return nil
}

// Completion is the outcome of one request.
type Completion struct {
	Slot     int
	Result   int64 // bytes moved, or a negative errno
	Userdata uint64
}

// Err returns nil or the errno in Result.
func (c Completion) Err() error {
	if c.Result >= 0 {
		return nil
	}
	return syscall.Errno(-c.Result)
}

// Wait collects completions into dst, in the order in which the daemon wrote them,
// and returns their number. It returns when there are atLeast that many, or when dst
// is full. It takes more if more are ready; with atLeast 0 it does not wait.
//
// If it returns fewer, it also returns an error; the completions in dst are valid all
// the same. The error is ctx.Err() (within about 10 ms), ErrDaemonGone, ErrProtocol or
// os.ErrClosed; EINVAL means that dst is empty. Wait does not count what is in flight:
// if atLeast is more than will ever come, it waits until its context ends.
//
// A Result that is not possible, such as more bytes than requested (a real 3FS can
// report that if a batch of reads meets holes), is returned as -EIO.
func (r *Ring) Wait(ctx context.Context, dst []Completion, atLeast int) (n int, err error) {
	if len(dst) == 0 {
		return 0, errNoSpace
	}
	atLeast = min(atLeast, len(dst))
	select {
	case r.turn <- struct{}{}:
	default:
		select {
		case r.turn <- struct{}{}:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	defer func() { <-r.turn }()
	if r.unmapping.Load() { // the memory may be gone
		return 0, *r.end.Load()
	}
	began := time.Now()
	spinEnd := spinFor
	for {
		got := r.reap(dst[n:])
		n += got
		if got > 0 {
			r.quietSince = time.Time{}
			spinEnd = spinUntil(time.Since(began), n)
		} else {
			r.quiet()
		}
		if n >= atLeast {
			r.fast = n > 0 && time.Since(began) < time.Duration(n)*fastEach
			return n, r.broken()
		}
		if end := r.end.Load(); end != nil {
			return n, *end
		}
		if err := ctx.Err(); err != nil {
			return n, err
		}
		if !r.fast || time.Since(began) >= spinEnd {
			r.fast = false
			r.pause(ctx, atLeast-n)
		}
	}
}

// While completions arrive as fast as those of small cached requests, a waiter spins
// for a moment after each before it sleeps. Then the daemon need not wake it, which would cost
// each side as much as several requests.
const (
	fastEach = 3 * time.Microsecond
	spinFor  = 40 * time.Microsecond
)

// spinUntil returns for how long a Wait that came to n completions after took may spin.
func spinUntil(took time.Duration, n int) time.Duration {
	if took < time.Duration(n)*fastEach {
		return took + spinFor
	}
	return spinFor
}

// broken returns ErrProtocol if that has ended the ring, so that even a Wait that got
// what it wanted reports a dropped completion.
func (r *Ring) broken() error {
	if end := r.end.Load(); end != nil && errors.Is(*end, ErrProtocol) {
		return *end
	}
	return nil
}

// reap takes the completions that are there. An impossible one is dropped and ends
// the ring.
func (r *Ring) reap(dst []Completion) (n int) {
	if invariants.Enabled {
		invariants.Check(len(r.turn) == 1, "reap without turn held")
		invariants.Check(!r.unmapping.Load() || r.end.Load() != nil, "the memory goes while the ring is usable")
	}
	var (
		cqe   wire.Cqe
		b     [wire.CqeBytes]byte
		head  int32
		queue bool
	)
	tail := r.cqeTail
	fault := shm.Guard(func() {
		head = r.mem.LoadInt32(wire.OffCqeHead)
		if head == tail || !r.layout.Valid(head) {
			return
		}
		for n < len(dst) && tail != head {
			r.mem.CopyOut(b[:], r.layout.CqeOff(tail))
			cqe.Decode(&b)
			tail = r.layout.Next(tail)
			asked, ok := r.slots.release(int(cqe.Index), cqe.Userdata)
			if !ok {
				r.fail(fmt.Errorf("%w: completion of slot %d, which is not in flight", ErrProtocol, cqe.Index))
				continue
			}
			if cqe.Result > asked.length || cqe.Result < -maxErrno {
				cqe.Result = -int64(syscall.EIO)
			}
			dst[n] = Completion{Slot: int(cqe.Index), Result: cqe.Result, Userdata: asked.userdata}
			n++
		}
		r.mem.StoreInt32(wire.OffCqeTail, tail)
		// The daemon may have held requests back because there was no space for their
		// completions (4.7). Upstream's library posts after every reap; if nothing is
		// queued, that only costs both sides a wake-up.
		queue = r.mem.LoadInt32(wire.OffSqeTail) != r.sqeHead.Load()
	})
	r.cqeTail = tail
	switch {
	case fault != nil:
		r.fail(fmt.Errorf("%w: %w", ErrProtocol, fault))
	case !r.layout.Valid(head):
		r.fail(fmt.Errorf("%w: completion head %d", ErrProtocol, head))
	case queue:
		_ = shm.Guard(r.submit.Post) // if the ring is gone, the wait below says so
	}
	return n
}

const maxErrno = 4095 // MAX_ERRNO of the kernel

// pause waits for the daemon's post, at most one step: the semaphore is a hint, and
// a lost post costs no more than that. kv3fs does not post before as many completions are
// there as are missing, or no more can come: each wake-up costs both sides as much as some
// requests.
func (r *Ring) pause(ctx context.Context, missing int) {
	d := step
	inFlight := r.slots.inFlight()
	if inFlight == 0 {
		d = idleStep
	}
	awaited := missing
	if missing > inFlight {
		// Others have to submit more first, maybe as slots become free: do not drain the ring for them.
		awaited = inFlight / 2
	}
	if deadline, ok := ctx.Deadline(); ok {
		d = max(0, min(d, time.Until(deadline)))
	}
	fault := shm.Guard(func() {
		r.mem.StoreInt32(r.layout.AwaitedOff(), int32(awaited))
		// The daemon may not have seen the number: what it has posted or published until now is not waited for.
		if !r.arrived.TakeAll() && !r.isThere(max(awaited, 1)) {
			r.arrived.Wait(d)
		}
		r.mem.StoreInt32(r.layout.AwaitedOff(), 0)
	})
	if fault != nil {
		r.fail(fmt.Errorf("%w: %w", ErrProtocol, fault))
	}
}

// isThere reports whether so many completions can be collected.
func (r *Ring) isThere(missing int) bool {
	head := r.mem.LoadInt32(wire.OffCqeHead)
	return !r.layout.Valid(head) || int(r.layout.Count(r.cqeTail, head)) >= missing
}

// quiet notes that there was nothing to collect. If that has been so for a while, it
// probes whether the daemon is still there.
func (r *Ring) quiet() {
	now := time.Now()
	if r.quietSince.IsZero() {
		r.quietSince = now
		return
	}
	d := now.Sub(r.quietSince)
	if d < probeGap || d < idleProbeGap && r.slots.inFlight() == 0 {
		return
	}
	r.quietSince = now
	why := r.unmounted.Load()
	if why == nil {
		r.probe()
		return
	}
	served := false
	if fault := shm.Guard(func() { served = r.gap.isServed(r.mem, r.layout, now) }); fault != nil {
		r.fail(fmt.Errorf("%w: %w", ErrProtocol, fault))
	} else if !served {
		r.fail(*why)
	}
}

// probe looks up our registration with the daemon, one lookup at a time and on a
// goroutine of its own: a daemon that hangs must not delay the wait. Nothing waits
// for that goroutine; it ends when the daemon answers or exits.
func (r *Ring) probe() {
	if r.probing.Swap(true) {
		return
	}
	go func() {
		defer r.probing.Store(false)
		err := r.m.registrar.probe(r.link)
		switch {
		case daemonGone(err):
			why := fmt.Errorf("%w (%w)", ErrDaemonGone, err)
			r.unmounted.CompareAndSwap(nil, &why)
		case errors.Is(err, syscall.ENOENT):
			r.fail(fmt.Errorf("%w: it no longer knows the ring", ErrDaemonGone))
		}
	}()
}

// fail ends the ring for the given reason and returns the reason. If the ring has
// ended already, the first reason stays.
func (r *Ring) fail(why error) error {
	r.end.CompareAndSwap(nil, &why)
	return *r.end.Load()
}

var errRingClosed = fmt.Errorf("usrbio: ring: %w", os.ErrClosed)

// Close ends the ring and makes a goroutine in Wait return. It does not wait for
// requests in flight: collect them first, or give up their memory (see the package
// comment). ctx bounds only the wait for the daemon, as with Mount.Close. Closing
// twice is harmless.
func (r *Ring) Close(ctx context.Context) error {
	return r.closing.do(ctx, func() error {
		r.fail(errRingClosed)
		r.unmapping.Store(true)
		_ = shm.Guard(r.arrived.Post) // wakes the waiter
		r.turn <- struct{}{}
		r.prep.Lock()
		r.mem.Unmap()
		r.prep.Unlock()
		<-r.turn
		err := r.unregister(ctx)   // may take long: no lock is held
		disown(r.m, &r.m.rings, r) // last: Mount.Close must not overtake this one
		return err
	})
}

func (r *Ring) unregister(ctx context.Context) error {
	return removed("close ring", r.m.registrar.unlink(ctx, r.link))
}
