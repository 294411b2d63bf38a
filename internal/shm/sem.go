package shm

import (
	"math"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sem is glibc's 64-bit sem_t (usrbio.md 4.2, observed with glibc 2.36). The first
// word has the value in its low half and the number of waiters in its high half; the
// process-shared mark follows.
type sem struct {
	valueAndWaiters uint64
	shared          uint32
	_               [20]byte
}

const (
	semBytes      = 32
	semSharedMark = 0x80
	oneWaiter     = 1 << 32
	valueMask     = math.MaxUint32

	futexWait = 0 // FUTEX_WAIT and FUTEX_WAKE without FUTEX_PRIVATE_FLAG, futex(2)
	futexWake = 1
)

var _ [semBytes]byte = [unsafe.Sizeof(sem{})]byte{}

// Sem is a process-shared semaphore inside a Mapping. Its methods may fault, like any
// access to shared memory: use them inside Guard.
type Sem struct{ s *sem }

// Init is sem_init(s, 1, 0).
func (s Sem) Init() {
	atomic.StoreUint64(&s.s.valueAndWaiters, 0)
	atomic.StoreUint32(&s.s.shared, semSharedMark)
}

// Post increments the value and wakes a waiter if there is one. At the value where
// glibc returns EOVERFLOW it only wakes: the value is above 0 anyway.
func (s Sem) Post() {
	d := atomic.LoadUint64(&s.s.valueAndWaiters)
	if uint32(d) < math.MaxInt32 {
		d = atomic.AddUint64(&s.s.valueAndWaiters, 1)
	}
	if d>>32 != 0 {
		wakeOne(s.valueAddr(), futexWake)
	}
}

// TakeAll sets the value to 0 without waiting and reports whether it was above 0.
func (s Sem) TakeAll() bool {
	if uint32(atomic.LoadUint64(&s.s.valueAndWaiters)) == 0 {
		return false
	}
	return uint32(atomic.AndUint64(&s.s.valueAndWaiters, ^uint64(valueMask))) != 0
}

// Await announces the only waiter of a semaphore, so that posts wake it, and Leave its
// end. Both mend what other processes may have written over the count of waiters and over
// the mark.
func (s Sem) Await() {
	s.restoreMark()
	if d := atomic.LoadUint64(&s.s.valueAndWaiters); d>>32 != 1 {
		atomic.AndUint64(&s.s.valueAndWaiters, valueMask)
		atomic.OrUint64(&s.s.valueAndWaiters, oneWaiter)
	}
}

// AwaitPost waits, between Await and Leave, until the value is above 0 or timeout has
// passed. It may return early. It accesses the memory only through the kernel, so another
// goroutine may unmap it meanwhile, and blocks its thread.
func (s Sem) AwaitPost(timeout time.Duration) {
	ts := unix.NsecToTimespec(int64(timeout))
	futex(s.valueAddr(), futexWait, 0, &ts)
}

// Leave is the end of what Await began.
func (s Sem) Leave() { atomic.AndUint64(&s.s.valueAndWaiters, valueMask) }

// restoreMark restores the word that glibc passes to the kernel with a wake-up: with
// another value there, sem_post ends the process.
func (s Sem) restoreMark() {
	if atomic.LoadUint32(&s.s.shared) != semSharedMark {
		atomic.StoreUint32(&s.s.shared, semSharedMark)
	}
}

// Wait waits until the value is above 0 or timeout has passed, and leaves the value as
// it is. It may return early. It blocks its thread.
func (s Sem) Wait(timeout time.Duration) {
	d := atomic.AddUint64(&s.s.valueAndWaiters, oneWaiter)
	if uint32(d) == 0 {
		ts := unix.NsecToTimespec(int64(timeout))
		futex(s.valueAddr(), futexWait, 0, &ts)
	}
	for {
		// A peer may have set the count of waiters to 0: do not go below.
		d := atomic.LoadUint64(&s.s.valueAndWaiters)
		if d>>32 == 0 || atomic.CompareAndSwapUint64(&s.s.valueAndWaiters, d, d-oneWaiter) {
			return
		}
	}
}

func (s Sem) valueAddr() *uint32 { return (*uint32)(unsafe.Pointer(s.s)) }

// wakeOne wakes a thread that waits at addr. The call is not announced to Go's scheduler, as it
// does not wait.
func wakeOne(addr *uint32, op int) {
	_, _, _ = syscall.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), uintptr(op), 1)
}

func futex(addr *uint32, op int, val uint32, timeout *unix.Timespec) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), uintptr(op), uintptr(val),
		uintptr(unsafe.Pointer(timeout)), 0, 0)
}
