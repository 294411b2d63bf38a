package blockfiles

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// places bounds how many blocks are open at once, for loads or for saves, so that a batch
// of any size works with the descriptors that the process may have.
type places struct {
	tokens  *semaphore.Weighted
	waiting atomic.Int32
	timeout time.Duration
}

const (
	leastPlaces = 4
	mostPlaces  = 4096

	// descriptorsPerPlace leaves half of the limit to the rest of the program: loads and
	// saves each have their places, and an open block takes up to two descriptors.
	descriptorsPerPlace = 8
)

func newPlaces(n int, timeout time.Duration) *places {
	return &places{tokens: semaphore.NewWeighted(int64(n)), timeout: timeout}
}

// placesAllowed returns how many places the limit of descriptors allows.
func placesAllowed() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return leastPlaces
	}
	return int(min(max(limit.Cur/descriptorsPerPlace, leastPlaces), mostPlaces))
}

// growDescriptors makes the kernel's table of the process's descriptors as large as the files
// of loads and saves need. Each time it grows later, all that open a file wait for some 10 ms,
// loads among them.
func growDescriptors(places int) {
	const files = descriptorsPerPlace / 2
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, files*places); err == nil {
		_ = unix.Close(high)
	}
}

// try takes a place if one is free and nobody waits for one.
func (p *places) try() bool { return p.tokens.TryAcquire(1) }

// wait waits for a place. Call it with nothing in hand that others may wait for.
func (p *places) wait(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if p.tokens.Acquire(bound, 1) == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: as many blocks are open as the limit of descriptors allows, and none was closed within %v: %w", kv.ErrTimeout, p.timeout, syscall.EMFILE)
}

func (p *places) leave() { p.tokens.Release(1) }
