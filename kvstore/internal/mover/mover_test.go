package mover

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const patience = 20 * time.Second

// begun is a copy that was begun: what it was told, and how often.
type begun struct {
	done, late chan error
	times      atomic.Int32
}

func begin(ctx context.Context, m *Mover, c Copy) *begun {
	b := &begun{done: make(chan error, 9), late: make(chan error, 9)}
	c.Done = func(err error) { b.times.Add(1); b.done <- err }
	c.Late = func() { b.late <- nil }
	m.Begin(ctx, c)
	return b
}

func wait(t *testing.T, what string, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		return nil
	}
}

// Copies go both ways, at most as many at once as there are streams.
func TestCopiesAtOnce(t *testing.T) {
	const streams = 3
	var running, most atomic.Int32
	d := device.NewHost(device.HostOptions{Before: func(device.Copy) error {
		n := running.Add(1)
		defer running.Add(-1)
		for {
			old := most.Load()
			if n <= old || most.CompareAndSwap(old, n) {
				break
			}
		}
		time.Sleep(time.Millisecond)
		return nil
	}})
	m := New(d, streams, patience, new(kv.DeviceCounters))
	b := d.Wrap(make([]byte, 64))
	var all []*begun
	for i := range int64(64) {
		all = append(all, begin(t.Context(), m, Copy{Place: b.At(i), Host: []byte{byte(i + 1)}}))
	}
	for _, c := range all {
		if err := wait(t, "a copy", c.done); err != nil {
			t.Error(err)
		}
	}
	got := make([]byte, 64)
	if err := wait(t, "the copy back", begin(t.Context(), m, Copy{Place: b.At(0), Host: got, ToHost: true}).done); err != nil {
		t.Error(err)
	}
	for i, v := range got {
		if v != byte(i+1) {
			t.Errorf("byte %d is %d", i, v)
		}
	}
	if n := most.Load(); n < 1 || n > streams {
		t.Errorf("%d copies at once, with %d streams", n, streams)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil { // hangs unless the streams are closed
		t.Error(err)
	}
}

// A copy whose event never comes is abandoned, those behind it fail, and Close says that
// memory is in use. When the event comes after all, the copy happens and Late is called once.
func TestEventThatDoesNotCome(t *testing.T) {
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	d := device.NewHost(device.HostOptions{Before: func(c device.Copy) error {
		if len(c.Mem) == 1 {
			<-gate
		}
		return nil
	}})
	engine, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	computed, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	b := d.Wrap(make([]byte, 8))
	if err := errors.Join(engine.ToDevice(b.At(7), []byte{9}), computed.Record(engine)); err != nil {
		t.Fatal(err)
	}
	m := New(d, 1, 200*time.Millisecond, new(kv.DeviceCounters))
	at := b.At(0)
	at.After = computed
	got := make([]byte, 8)
	c := begin(t.Context(), m, Copy{Place: at, Host: got, ToHost: true})
	behind := begin(t.Context(), m, Copy{Place: b.At(0), Host: make([]byte, 8), ToHost: true})
	if err := wait(t, "the copy", c.done); !errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("a copy whose event does not come: %v", err)
	}
	if err := wait(t, "the copy behind it", behind.done); !errors.Is(err, kv.ErrTimeout) || errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("a copy that never began: %v", err)
	}
	if err := m.Close(); err == nil {
		t.Error("Close says that nothing uses the memory any more")
	}
	select {
	case <-c.late:
		t.Error("Late was called while the copy was under way")
	default:
	}
	open()
	_ = wait(t, "Late", c.late)
	if got[7] != 9 {
		t.Error("the copy did not wait for its event")
	}
	if n := c.times.Load(); n != 1 {
		t.Errorf("Done was called %d times", n)
	}
	engine.Close()
	if err := d.Close(); err != nil { // hangs unless the stream of the late copy is closed
		t.Error(err)
	}
}

// A device of which nothing can be said any more is not used again.
func TestDeviceThatCannotBeWaitedFor(t *testing.T) {
	broken := errors.New("broken")
	var bad atomic.Bool
	d := device.NewHost(device.HostOptions{WaitError: func() error {
		if bad.Load() {
			return broken
		}
		return nil
	}})
	m := New(d, 2, patience, new(kv.DeviceCounters))
	b := d.Wrap([]byte("12345678"))
	bad.Store(true)
	if err := wait(t, "the copy", begin(t.Context(), m, Copy{Place: b.At(0), Host: make([]byte, 8), ToHost: true}).done); !errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("%v", err)
	}
	bad.Store(false)
	got := make([]byte, 8)
	c := begin(t.Context(), m, Copy{Place: b.At(0), Host: got, ToHost: true})
	if err := wait(t, "the next copy", c.done); err == nil || errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("the next copy: %v", err)
	}
	if !bytes.Equal(got, make([]byte, 8)) {
		t.Error("the device was used again")
	}
	if err := m.Close(); err == nil {
		t.Error("Close says that nothing uses the memory any more")
	}
}

// What is cancelled before it begins does not happen.
func TestCancelled(t *testing.T) {
	d := device.NewHost(device.HostOptions{})
	m := New(d, 1, patience, new(kv.DeviceCounters))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := d.Wrap(make([]byte, 1))
	if err := wait(t, "the copy", begin(ctx, m, Copy{Place: b.At(0), Host: []byte{1}}).done); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := wait(t, "a copy after Close", begin(t.Context(), m, Copy{Place: b.At(0), Host: []byte{1}}).done); !errors.Is(err, kv.ErrClosed) {
		t.Error(err)
	}
	if b.Bytes()[0] != 0 {
		t.Error("copied")
	}
}

// hanging is a device whose streams hang when they are closed.
type hanging struct {
	*device.Host
	gate chan struct{}
}

type hangingStream struct {
	device.Stream
	gate chan struct{}
}

func (d hanging) NewStream() (device.Stream, error) {
	s, err := d.Host.NewStream()
	return hangingStream{s, d.gate}, err
}

func (d hanging) NewEvent() (device.Event, error) {
	e, err := d.Host.NewEvent()
	return hangingEvent{e}, err
}

type hangingEvent struct{ device.Event }

func (e hangingEvent) Record(s device.Stream) error { return e.Event.Record(s.(hangingStream).Stream) }

func (s hangingStream) Close() error {
	<-s.gate
	return s.Stream.Close()
}

// Close is bounded, whatever of the device hangs.
func TestCloseOfStreamsThatHang(t *testing.T) {
	d := hanging{device.NewHost(device.HostOptions{}), make(chan struct{})}
	m := New(d, 1, 100*time.Millisecond, new(kv.DeviceCounters))
	b := d.Wrap(make([]byte, 1))
	if err := wait(t, "the copy", begin(t.Context(), m, Copy{Place: b.At(0), Host: []byte{1}}).done); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- m.Close() }()
	if err := wait(t, "Close", closed); !errors.Is(err, kv.ErrTimeout) {
		t.Errorf("Close: %v", err)
	}
	close(d.gate)
	if err := d.Host.Close(); err != nil { // waits for the stream
		t.Error(err)
	}
}

// What was begun is counted by how it ended, and what never began is not.
func TestCopiesAreCounted(t *testing.T) {
	broken := errors.New("broken")
	gate := make(chan struct{})
	d := device.NewHost(device.HostOptions{
		Refuse: func(c device.Copy) error {
			if len(c.Mem) == 2 {
				return broken
			}
			return nil
		},
		Before: func(c device.Copy) error {
			if len(c.Mem) == 3 {
				<-gate
			}
			return nil
		},
	})
	var count kv.DeviceCounters
	m := New(d, 4, 200*time.Millisecond, &count)
	b := d.Wrap(make([]byte, 8))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx    context.Context
		bytes  int
		toHost bool
		err    error
	}{
		{t.Context(), 8, true, nil}, {t.Context(), 5, false, nil}, {t.Context(), 2, true, broken},
		{t.Context(), 3, false, kv.ErrAbandoned}, {cancelled, 8, true, context.Canceled},
	} {
		if err := wait(t, "a copy", begin(c.ctx, m, Copy{Place: b.At(0), Host: make([]byte, c.bytes), ToHost: c.toHost}).done); !errors.Is(err, c.err) {
			t.Errorf("%d bytes: %v", c.bytes, err)
		}
	}
	if got, want := count.Copies(), (kv.DeviceCopies{Copies: 2, Bytes: 13, Failed: 1, Abandoned: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	close(gate)
	_ = m.Close() // it knows of a copy that was abandoned
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
