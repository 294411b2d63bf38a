package cache

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/mover"
)

// staging is pinned memory for blocks that get no slot on their way to or from a device.
// It is allocated when it is first needed, and bounded.
type staging struct {
	device  device.Device
	mover   *mover.Mover
	layout  kv.Layout
	timeout time.Duration

	free  chan *stagedBlock // a nil is one that is not allocated yet
	given atomic.Int64      // blocks that came back, ever
}

func newStaging(o Options, m *mover.Mover, l kv.Layout) *staging {
	n := max(2, min(64, o.StagingBytes/l.BlockBytes))
	s := &staging{device: o.Device, mover: m, layout: l, timeout: o.Timeout, free: make(chan *stagedBlock, n)}
	for range n {
		s.free <- nil
	}
	return s
}

// take returns memory for a block, held once. It waits for as long as others come back, and
// then at most for the timeout.
func (s *staging) take(ctx context.Context) (*stagedBlock, error) {
	patience := time.NewTimer(s.timeout)
	defer patience.Stop()
	for before := s.given.Load(); ; {
		select {
		case m := <-s.free:
			return s.prepare(m)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-patience.C:
		}
		now := s.given.Load()
		if now == before {
			return nil, fmt.Errorf("%w: all staging memory for device %s is in use, and none came back within %v", kv.ErrTimeout, s.device.Name(), s.timeout)
		}
		before = now
		patience.Reset(s.timeout)
	}
}

func (s *staging) prepare(m *stagedBlock) (*stagedBlock, error) {
	if m == nil {
		var mem []byte
		err := s.mover.Within(func() (err error) {
			mem, err = s.device.AllocHost(s.layout.BlockBytes)
			return err
		}, func(err error) {
			if err != nil {
				s.free <- nil
				return
			}
			s.put(&stagedBlock{of: s, mem: mem})
		})
		if err != nil {
			if !errors.Is(err, kv.ErrTimeout) { // else it comes late, or never
				s.free <- nil
			}
			return nil, fmt.Errorf("kvstore: cache: staging memory for device %s: %w", s.device.Name(), err)
		}
		m = &stagedBlock{of: s, mem: mem}
	}
	m.holds.Store(1)
	return m, nil
}

func (s *staging) put(m *stagedBlock) {
	s.given.Add(1)
	s.free <- m
}

// close releases what nothing uses. What next's storage may still use stays allocated; then
// next's Close fails.
func (s *staging) close() error {
	var errs []error
	for {
		select {
		case m := <-s.free:
			if m == nil {
				continue
			}
			if err := s.device.FreeHost(m.mem); err != nil {
				errs = append(errs, fmt.Errorf("kvstore: cache: staging memory: %w", err))
			}
		default:
			return errors.Join(errs...)
		}
	}
}
