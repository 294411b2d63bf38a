// Package mover copies between a device's memory and pinned host memory. How many copies
// run is bounded, and so is every wait for one: a device that does not answer costs the
// caller an error, not its goroutine.
package mover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// Copy is one copy between a place on the device and Host, which is pinned.
type Copy struct {
	Place  device.Place
	Host   []byte
	ToHost bool // else to the device. Copies to the device overtake those from it

	// Done is called exactly once, from any goroutine: with nil when all bytes are where
	// they belong. Both memories are the caller's again, unless the error is a
	// kv.ErrAbandoned. It must not wait.
	Done func(error)

	// Late is called when a copy that Done was given a kv.ErrAbandoned for has ended after
	// all. It may never be.
	Late func()
}

// Mover has a fixed number of streams, each with one copy at a time. Any number of
// goroutines may use it.
type Mover struct {
	device  device.Device
	timeout time.Duration
	pool    *workerpool.Pool
	count   *kv.DeviceCounters
	failed  atomic.Pointer[error] // why the device is not used any more

	mu     sync.Mutex
	lanes  []*lane // that are open and not in use
	closed bool    // lanes that come back are closed
}

// lane is a stream, and the event that tells when its copy has ended.
type lane struct {
	stream device.Stream
	event  device.Event
}

// New returns a mover with so many streams, which counts into count. They are opened when
// they are needed first. A copy that makes no progress for the timeout is given up.
func New(d device.Device, streams int, timeout time.Duration, count *kv.DeviceCounters) *Mover {
	return &Mover{device: d, timeout: timeout, pool: workerpool.New(streams, timeout), count: count}
}

// Begin queues a copy. It does not begin any more after ctx has ended, and fails then with
// ctx's error.
func (m *Mover) Begin(ctx context.Context, c Copy) {
	var err error
	told := make(chan struct{}) // Done has returned
	job := workerpool.Job{
		Context: ctx,
		Run:     func() { err = m.copy(c) },
		Done: func(ended error) {
			defer close(told)
			switch {
			case ended == nil:
				ended = err
			case errors.Is(ended, workerpool.ErrOverdue):
				ended = kv.Abandoned(fmt.Sprintf("device %s has not finished a copy within %v", m.device.Name(), m.timeout))
			default: // it was never begun
				c.Done(ended)
				return
			}
			m.count.Count(len(c.Host), ended)
			c.Done(ended)
		},
		Late: func() {
			if <-told; c.Late != nil && !errors.Is(err, kv.ErrAbandoned) {
				c.Late()
			}
		},
	}
	if c.ToHost {
		job.Bulk = int64(len(c.Host))
	}
	m.pool.Go(job)
}

// copy copies and waits for it. When it returns, nothing runs in its lane any more, unless
// the error is a kv.ErrAbandoned.
func (m *Mover) copy(c Copy) error {
	if why := m.failed.Load(); why != nil {
		return *why
	}
	l, err := m.lane()
	if err != nil {
		return m.explain("open a stream", err)
	}
	defer m.free(l)
	what := "copy to the device"
	if c.ToHost {
		what = "copy from the device"
	}
	queued := l.queue(c)
	err = l.drain()
	if err == nil {
		return m.explain(what, queued)
	}
	// A copy has failed, or the device has. If the stream can be waited for, nothing is
	// running in it.
	err = m.explain(what, errors.Join(queued, err))
	if again := l.drain(); again != nil {
		m.failed.CompareAndSwap(nil, &err)
		return kv.Abandoned(err.Error())
	}
	return err
}

func (l *lane) queue(c Copy) error {
	if after := c.Place.After; after != nil {
		if err := l.stream.After(after); err != nil {
			return err
		}
	}
	if c.ToHost {
		return l.stream.ToHost(c.Host, c.Place)
	}
	return l.stream.ToDevice(c.Place, c.Host)
}

// drain waits until the lane's stream has nothing left to do.
func (l *lane) drain() error {
	if err := l.event.Record(l.stream); err != nil {
		return err
	}
	return l.event.Wait()
}

func (m *Mover) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("kvstore: device %s: %s: %w", m.device.Name(), what, err)
}

// lane returns one that is not in use, or opens one. There are never more than goroutines.
func (m *Mover) lane() (*lane, error) {
	m.mu.Lock()
	if last := len(m.lanes) - 1; last >= 0 {
		l := m.lanes[last]
		m.lanes = m.lanes[:last]
		m.mu.Unlock()
		return l, nil
	}
	m.mu.Unlock()
	stream, err := m.device.NewStream()
	if err != nil {
		return nil, err
	}
	event, err := m.device.NewEvent()
	if err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	return &lane{stream, event}, nil
}

func (m *Mover) free(l *lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		_ = l.close() // Close has returned an error already
		return
	}
	m.lanes = append(m.lanes, l)
}

func (l *lane) close() error { return errors.Join(l.stream.Close(), l.event.Close()) }

// Within calls the device, and waits at most for the timeout. After a kv.ErrTimeout the
// call may still be under way. Late, unless it is nil, is called when it has ended after
// all.
func (m *Mover) Within(call func() error, late func(error)) error {
	var settled atomic.Bool
	ended := make(chan error, 1)
	go func() {
		err := call()
		if settled.CompareAndSwap(false, true) {
			ended <- err
		} else if late != nil {
			late(err)
		}
	}()
	patience := time.NewTimer(m.timeout)
	defer patience.Stop()
	select {
	case err := <-ended:
		return err
	case <-patience.C:
	}
	if !settled.CompareAndSwap(false, true) {
		return <-ended
	}
	return fmt.Errorf("%w: device %s has not answered within %v", kv.ErrTimeout, m.device.Name(), m.timeout)
}

// Close waits for what has begun, at most for the timeout. What has not begun fails with
// kv.ErrClosed. After an error copies may still be running: memory that was used for
// copies must then stay as it is.
func (m *Mover) Close() error {
	stuck := m.pool.Close()
	m.mu.Lock()
	lanes := m.lanes
	m.lanes, m.closed = nil, true
	m.mu.Unlock()
	err := m.Within(func() error {
		var errs []error
		for _, l := range lanes {
			errs = append(errs, l.close())
		}
		return errors.Join(errs...)
	}, nil)
	if stuck != nil {
		return fmt.Errorf("kvstore: device %s does not answer: %w", m.device.Name(), stuck)
	}
	if why := m.failed.Load(); why != nil {
		return *why
	}
	return m.explain("close a stream", err)
}
