package shm

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxWaited is how many semaphores one Waiter can wait for: the kernel takes 128 words in
// a call, and one of them is the Waiter's own.
const MaxWaited = 127

// Waiter waits for any of several semaphores, and for Wake. One goroutine at a time calls
// Wait; any calls Wake. No other process can reach what Wake writes.
type Waiter struct {
	state uint32 // awake, asleep or woken
	words [MaxWaited + 1]waitWord
}

const (
	awake uint32 = iota
	asleep
	woken // before it slept: the next Wait returns at once
)

// waitWord is the kernel's struct futex_waitv, futex_waitv(2).
type waitWord struct {
	value uint64
	addr  uint64
	flags uint32
	_     uint32
}

const (
	futexSize32  = 2
	futexPrivate = 128
)

// CanWaitForMany reports whether this kernel can wait for several words in one call
// (futex_waitv, Linux 5.16). Where it cannot, a Waiter waits for Wake only.
func CanWaitForMany() bool {
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX_WAITV, 0, 0, 0, 0, 0, 0)
	return errno == unix.EINVAL // of no words; ENOSYS, or EPERM from a container's filter, otherwise
}

// Wake ends the current Wait, or the next one if there is none.
func (w *Waiter) Wake() {
	if atomic.SwapUint32(&w.state, woken) == asleep {
		wakeOne(&w.state, futexWake|futexPrivate)
	}
}

// Wait waits until one of the semaphores has a value above 0, Wake is called or bound has
// passed; it may return early. Announce the wait with Await before it and call Leave
// afterwards, or posts do not wake it. It takes at most MaxWaited semaphores and blocks its
// thread. ErrFault: one of the objects was shrunk.
func (w *Waiter) Wait(sems []Sem, bound time.Duration) error {
	defer atomic.StoreUint32(&w.state, awake)
	if !atomic.CompareAndSwapUint32(&w.state, awake, asleep) {
		return nil
	}
	if len(sems) == 0 {
		ts := unix.NsecToTimespec(int64(bound))
		futex(&w.state, futexWait|futexPrivate, asleep, &ts)
		return nil
	}
	w.words[0] = waitWord{value: uint64(asleep), addr: uint64(uintptr(unsafe.Pointer(&w.state))), flags: futexSize32 | futexPrivate}
	for i, s := range sems {
		w.words[i+1] = waitWord{addr: uint64(uintptr(unsafe.Pointer(s.valueAddr()))), flags: futexSize32}
	}
	var end unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &end); err != nil {
		return err
	}
	end = unix.NsecToTimespec(end.Nano() + int64(bound))
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX_WAITV, uintptr(unsafe.Pointer(&w.words)), uintptr(len(sems)+1), 0,
		uintptr(unsafe.Pointer(&end)), unix.CLOCK_MONOTONIC, 0)
	runtime.KeepAlive(w)
	if errors.Is(errno, unix.EFAULT) {
		return ErrFault
	}
	return nil
}
