package sums

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// retrying does something once more where open files have become useless: a daemon
// behind a mount was replaced, a server has forgotten them, or somebody has removed
// the directory.
func (b *Book) retrying(do func() error) error {
	b.mu.RLock()
	renewed := b.renewed
	b.mu.RUnlock()
	err := do()
	if !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ESTALE) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if failed := b.renew(renewed); failed != nil {
		return errors.Join(err, failed)
	}
	return do()
}

// renew opens all logs anew, unless somebody has since.
func (b *Book) renew(since int) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.renewed != since {
		return nil
	}
	if b.closed {
		return kv.ErrClosed
	}
	_ = b.closeLogs()
	if err := b.load(); err != nil {
		_ = b.closeLogs()
		return err
	}
	b.renewed++
	return nil
}
