package cache

import (
	"errors"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Close writes what was accepted to next, within the store's timeout, and closes next.
func (s *Store) Close() error {
	return s.close()
}

func (s *Store) shutdown() error {
	s.group.Close()
	close(s.ended)
	s.expire(0)
	s.drain()
	s.services.Wait()
	err := s.copiers.Close()
	unmap := s.closeDevice(&err)
	s.mu.Lock()
	s.checkPins()
	err = errors.Join(err, s.write.report())
	s.mu.Unlock()
	err = errors.Join(err, s.next.Close())
	if unmap || !s.table.Shared() {
		if e := s.table.Leave(); e != nil {
			err = errors.Join(err, fmt.Errorf("kvstore: cache: %w", e))
		}
	}
	if unmap {
		s.table.Unmap()
	}
	return err
}

// closeDevice ends the copies, and reports whether the memory may be unmapped then. If the
// device may still use it, it stays as it is until the process ends, and so does the
// process's part in a shared cache: others take its slots over when it is dead.
func (s *Store) closeDevice(err *error) (unmap bool) {
	if s.mover == nil {
		return true
	}
	stuck := s.mover.Close()
	s.mu.Lock()
	s.left = true
	s.mu.Unlock()
	if stuck != nil {
		*err = errors.Join(*err, stuck)
		return false
	}
	*err = errors.Join(*err, s.mover.Within(s.staging.close, nil))
	if e := s.mover.Within(func() error { return s.o.Device.Unregister(s.table.Bytes()) }, nil); e != nil {
		*err = errors.Join(*err, fmt.Errorf("kvstore: cache: unregister memory: %w", e))
		return false
	}
	return true
}

// drain waits until the writers have written everything, at most for the timeout.
func (s *Store) drain() {
	w, written := &s.write, make(chan struct{})
	s.mu.Lock()
	w.ended = true
	w.more.Broadcast()
	s.mu.Unlock()
	s.services.Go(func() {
		timer := time.NewTimer(s.o.Timeout)
		defer timer.Stop()
		select {
		case <-written:
		case <-timer.C:
			s.mu.Lock()
			left := w.queue
			w.queue = nil
			for _, d := range left {
				if !d.done {
					s.finish(d, kv.ErrTimeout)
				}
			}
			s.mu.Unlock()
			w.cancel()
		}
	})
	w.wg.Wait()
	close(written)
	w.cancel()
}
