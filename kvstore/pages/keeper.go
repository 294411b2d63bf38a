package pages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// keeper has the page file open for batches to use. Where what is behind it is gone,
// as a daemon is that was replaced, the next batch opens it anew.
type keeper struct {
	open  func() (transfer.File, error)
	opens *workerpool.Pool // of one: a file system may hang

	mu     sync.Mutex
	now    *handle // nil: to be opened
	closed bool
}

// handle is the file as it was opened once.
type handle struct {
	file  transfer.File
	users int // of which the keeper is one while it has it
}

func newKeeper(file transfer.File, open func() (transfer.File, error), timeout time.Duration) *keeper {
	return &keeper{open: open, opens: workerpool.New(1, timeout), now: &handle{file, 1}}
}

// take is the file, for who gives it back.
func (k *keeper) take(ctx context.Context) (*handle, error) {
	if h := k.current(); h != nil {
		return h, nil
	}
	outcome := make(chan error, 1)
	var failed error
	k.opens.Go(workerpool.Job{
		Context: ctx,
		Run:     func() { failed = k.renew() },
		Done: func(err error) {
			switch {
			case err == nil:
				err = failed
			case errors.Is(err, workerpool.ErrOverdue):
				err = fmt.Errorf("%w: the page file cannot be opened anew", kv.ErrTimeout)
			case ctx.Err() != nil:
				err = endOf(ctx)
			}
			outcome <- err
		},
	})
	if err := <-outcome; err != nil {
		return nil, err
	}
	if h := k.current(); h != nil {
		return h, nil
	}
	return nil, syscall.ENOTCONN // gone again
}

func (k *keeper) current() *handle {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now != nil {
		k.now.users++
	}
	return k.now
}

// renew opens the file, unless somebody has.
func (k *keeper) renew() error {
	k.mu.Lock()
	known := k.now != nil
	k.mu.Unlock()
	if known {
		return nil
	}
	file, err := k.open()
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed { // it took too long
		return errors.Join(kv.ErrClosed, file.Close())
	}
	k.now = &handle{file, 1}
	return nil
}

// heed looks at how a move has ended, and gives up a file that is of no use any more.
func (k *keeper) heed(h *handle, err error) {
	if !gone(err) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now == h {
		k.now = nil
		h.users-- // who calls is another one
	}
}

// gone tells whether an error says that an open file is of no use any more.
func gone(err error) bool { return errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ESTALE) }

// give ends a use.
func (k *keeper) give(h *handle) {
	k.mu.Lock()
	h.users--
	last := h.users == 0
	k.mu.Unlock()
	if last {
		_ = h.file.Close() // it is of no use any more, and may well say so
	}
}

// close is called when nobody uses the file.
func (k *keeper) close() error {
	err := k.opens.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	if k.now == nil {
		return err
	}
	if failed := k.now.file.Close(); !gone(failed) { // what was settled is not lost by it
		err = errors.Join(err, failed)
	}
	return err
}

// openAgain opens the page file that was there before, and no other.
func openAgain(o *Options, want label) (*os.File, error) {
	f, err := os.OpenFile(o.File, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("kvstore: page file: %w", err)
	}
	raw := make([]byte, labelBytes)
	_, err = f.ReadAt(raw, 0)
	var l label
	if err == nil {
		l, err = decodeLabel(raw)
	}
	if err == nil && l != want {
		err = errors.New("another one has taken its place; open the store anew")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("kvstore: page file %s: %w", o.File, err)
	}
	return f, nil
}
