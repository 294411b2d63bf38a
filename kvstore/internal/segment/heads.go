package segment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// headBuffers is how many heads may be read or written at once: 2 MiB of buffers.
const headBuffers = 512

// heads are buffers for heads of blocks: pages outside Go's heap, as direct I/O needs
// them.
type heads struct {
	mem     []byte
	free    chan []byte
	timeout time.Duration
}

func newHeads(timeout time.Duration) (*heads, error) {
	mem, err := anonymous(headBuffers * blockhead.Size)
	if err != nil {
		return nil, err
	}
	h := &heads{mem: mem, free: make(chan []byte, headBuffers), timeout: timeout}
	for at := 0; at < len(mem); at += blockhead.Size {
		h.free <- mem[at : at+blockhead.Size : at+blockhead.Size]
	}
	return h, nil
}

// try returns a buffer, if one is free.
func (h *heads) try() ([]byte, bool) {
	select {
	case buf := <-h.free:
		return buf, true
	default:
		return nil, false
	}
}

// get waits for a buffer. Buffers come back when the engine has finished a move.
func (h *heads) get(ctx context.Context) ([]byte, error) {
	if buf, ok := h.try(); ok {
		return buf, nil
	}
	patience := time.NewTimer(h.timeout)
	defer patience.Stop()
	select {
	case buf := <-h.free:
		return buf, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-patience.C:
		return nil, fmt.Errorf("%w: %d heads of blocks are on their way", kv.ErrTimeout, headBuffers)
	}
}

// put gives a buffer back. One that the storage may still use is never used again.
func (h *heads) put(buf []byte, err error) {
	if !errors.Is(err, kv.ErrAbandoned) {
		h.free <- buf
	}
}

// close unmaps, unless the storage may still use some of it.
func (h *heads) close() {
	if len(h.free) == headBuffers {
		_ = unix.Munmap(h.mem)
	}
}

// anonymous is memory outside Go's heap.
func anonymous(sizeBytes int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, sizeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("segment store: %d bytes of memory: %w", sizeBytes, err)
	}
	return mem, nil
}
