package sums

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// retrying opens the logs again and repeats a call that failed because the open files
// have become useless: the daemon behind a mount was replaced, a server has forgotten
// them, or the directory was removed.
func (ls *Logs) retrying(do func() error) error {
	ls.mu.RLock()
	renewed := ls.renewed
	ls.mu.RUnlock()
	err := do()
	if !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ESTALE) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if failed := ls.renew(renewed); failed != nil {
		return errors.Join(err, failed)
	}
	return do()
}

// renew opens all logs again, unless another caller has since.
func (ls *Logs) renew(since int) error {
	ls.writing.Lock()
	defer ls.writing.Unlock()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.renewed != since {
		return nil
	}
	if ls.closed {
		return kv.ErrClosed
	}
	_ = ls.closeLogs()
	if err := ls.load(); err != nil {
		_ = ls.closeLogs()
		return err
	}
	ls.renewed++
	return nil
}
