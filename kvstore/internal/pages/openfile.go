package pages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// pageFile keeps the page file open for batches to use. When the open file has become
// useless, as after a daemon was replaced, the next batch opens it again.
type pageFile struct {
	open  func() (transfer.File, error)
	opens *workerpool.Pool // of one: a file system may hang

	mu     sync.Mutex
	now    *handle // nil: to be opened
	closed bool
}

// handle is one opening of the file.
type handle struct {
	file  transfer.File
	users int // the pageFile is one of them while it keeps the handle
}

func newPageFile(file transfer.File, open func() (transfer.File, error), timeout time.Duration) *pageFile {
	return &pageFile{open: open, opens: workerpool.New(1, timeout), now: &handle{file, 1}}
}

// take returns the file, opened again if necessary. The caller gives it back.
func (p *pageFile) take(ctx context.Context) (*handle, error) {
	if h := p.current(); h != nil {
		return h, nil
	}
	if err := p.do(ctx, p.renew); err != nil {
		return nil, err
	}
	if h := p.current(); h != nil {
		return h, nil
	}
	return nil, syscall.ENOTCONN // it is gone again
}

// do runs something that opens the file, for at most the timeout.
func (p *pageFile) do(ctx context.Context, open func() error) error {
	outcome := make(chan error, 1)
	var failed error
	p.opens.Go(workerpool.Job{
		Context: ctx,
		Run:     func() { failed = open() },
		Done: func(err error) {
			switch {
			case err == nil:
				err = failed
			case errors.Is(err, workerpool.ErrOverdue):
				err = fmt.Errorf("%w: opening the page file again", kv.ErrTimeout)
			case ctx.Err() != nil:
				err = endOf(ctx)
			}
			outcome <- err
		},
	})
	return <-outcome
}

func (p *pageFile) current() *handle {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		p.now.users++
	}
	return p.now
}

// renew opens the file, unless it is open by now.
func (p *pageFile) renew() error {
	p.mu.Lock()
	known := p.now != nil
	p.mu.Unlock()
	if known {
		return nil
	}
	file, err := p.open()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed { // opening it took too long
		return errors.Join(kv.ErrClosed, file.Close())
	}
	p.now = &handle{file, 1}
	return nil
}

// dropIfGone makes the next batch open the file again if the error of a move says that
// it has become useless.
func (p *pageFile) dropIfGone(h *handle, err error) {
	if !gone(err) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == h {
		p.now = nil
		h.users-- // the caller is a user, too, so this is not the last one
	}
}

// gone reports whether an error says that an open file has become useless.
func gone(err error) bool { return errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ESTALE) }

// give ends a use.
func (p *pageFile) give(h *handle) {
	p.mu.Lock()
	h.users--
	invariants.Check(h.users >= 0, "the page file has %d users", h.users)
	last := h.users == 0
	p.mu.Unlock()
	if last {
		_ = h.file.Close() // it has become useless, so an error says nothing new
	}
}

// close is called when nobody uses the file.
func (p *pageFile) close() error {
	err := p.opens.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.now == nil {
		return err
	}
	invariants.Check(p.now.users == 1, "the page file is closed with %d users", p.now.users)
	if failed := p.now.file.Close(); !gone(failed) { // if it is gone, nothing settled is lost
		err = errors.Join(err, failed)
	}
	return err
}

// openUncached opens the page file to read its label from the disk.
func openUncached(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECT, 0)
	if errors.Is(err, unix.EINVAL) {
		f, err = os.Open(name)
	}
	if err != nil {
		return nil, fmt.Errorf("kvstore: page file: %w", err)
	}
	// Where there is no direct I/O. Dirty pages would stay, but the label was synced.
	_ = unix.Fadvise(int(f.Fd()), 0, labelBytes, unix.FADV_DONTNEED)
	return f, nil
}

// openAgain opens the page file that was open before, and no other.
func openAgain(o *Options, want label) (*os.File, error) {
	f, err := os.OpenFile(o.File, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("kvstore: page file: %w", err)
	}
	raw := make([]byte, labelBytes)
	_, err = f.ReadAt(raw, 0)
	if err == nil {
		err = want.same(raw)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("kvstore: page file %s: %w", o.File, err)
	}
	return f, nil
}
