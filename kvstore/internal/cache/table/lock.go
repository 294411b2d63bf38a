package table

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Locks are of single bytes of the object, by open file description: the kernel
// drops them when their holder ends in whatever way. The object's bytes do not
// matter to them.
const (
	tableLock   = 0
	memberLock  = 1 // and one for each further member
	mostMembers = 64
)

// tryLock takes a lock if it is free.
func tryLock(fd int, at int64) (bool, error) {
	err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1})
	if err == unix.EAGAIN || err == unix.EACCES {
		return false, nil
	}
	return err == nil, err
}

func unlock(fd int, at int64) {
	_ = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: at, Len: 1})
}

// lockWithin waits for the table's lock. A process holds it for a moment only, unless it
// is stopped (SIGSTOP).
func lockWithin(fd int, wait time.Duration) error {
	const shortest, longest = 20 * time.Microsecond, time.Millisecond
	pause := shortest
	var until time.Time
	for tries := 0; ; tries++ {
		switch ok, err := tryLock(fd, tableLock); {
		case err != nil:
			return fmt.Errorf("lock: %w", err)
		case ok:
			return nil
		case tries < 20:
			runtime.Gosched()
			continue
		case until.IsZero():
			until = time.Now().Add(wait)
		case time.Now().After(until):
			return fmt.Errorf("another process has held the cache's lock for %v", wait)
		}
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
}

// Do runs fn while no other process uses the table; fn may call the methods that say
// "inside Do". On an error fn was not run; with ErrBroken it may have been run in part.
func (t *Table) Do(fn func()) error {
	if t.Broken() {
		return ErrBroken
	}
	if !t.shared {
		return t.guard(fn)
	}
	if err := t.lock(); err != nil {
		return err
	}
	defer unlock(t.fd, tableLock)
	if t.Check() != nil {
		return ErrBroken
	}
	return t.guard(func() {
		if t.m.LoadUint64(changingAt) != 0 {
			t.rebuild()
		}
		t.m.StoreUint64(changingAt, 1)
		fn()
		t.m.StoreUint64(changingAt, 0)
	})
}

// Check gives the memory up if the object has become smaller, before a caller that cannot
// handle faults touches it. Any goroutine may call it.
func (t *Table) Check() error {
	if t.fd < 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(t.fd, &st); err != nil || st.Size < t.p.total {
		t.fail()
	}
	if t.Broken() {
		return ErrBroken
	}
	return nil
}

// lock waits for the lock at most for LockWait. After it has waited in vain it does not
// wait again for as long, unless it finds the lock free.
func (t *Table) lock() error {
	wait := t.c.LockWait
	if time.Now().Before(t.noWaitUntil) {
		wait = 0
	}
	err := lockWithin(t.fd, wait)
	t.noWaitUntil = time.Time{}
	if err != nil {
		t.noWaitUntil = time.Now().Add(t.c.LockWait)
	}
	return err
}

// Now returns the monotonic clock, which is the same for all processes.
func Now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}
