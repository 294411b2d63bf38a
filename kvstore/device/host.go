package device

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Host is a device whose memory is the host's. Its streams copy in goroutines of their
// own, so a program that forgets to wait for an event finds out here as well.
type Host struct {
	o        HostOptions
	nextAddr atomic.Uint64
	streams  sync.WaitGroup
}

// HostOptions change what a Host does, for tests of programs.
type HostOptions struct {
	// Refuse, unless it is nil, is called with each copy before it is queued, and may
	// return an error instead.
	Refuse func(Copy) error
	// Before, unless it is nil, is called with each copy when it is its turn, in its
	// stream's goroutine. It may take its time, and it may return an error: the copy then
	// does not happen, and events that are recorded after it return the error.
	Before func(Copy) error
	// WaitError, unless it is nil, is called by each Wait of an event, after the event has
	// occurred, and may return an error.
	WaitError func() error
	// Memory, unless it is nil, is called by AllocHost, FreeHost, Register and Unregister
	// with its name and the memory's size, and may take its time or return an error instead.
	Memory func(method string, sizeBytes int64) error
}

// Copy is one copy of a stream.
type Copy struct {
	Place    Place
	Mem      []byte // the pinned memory
	ToDevice bool
}

var (
	_ Device = (*Host)(nil)
	_ Stream = (*hostStream)(nil)
	_ Event  = (*hostEvent)(nil)
)

// NewHost returns a device of its own.
func NewHost(o HostOptions) *Host { return &Host{o: o} }

// Name says that there is no accelerator.
func (h *Host) Name() string { return "host memory" }

// Alloc allocates memory of Go.
func (h *Host) Alloc(sizeBytes int64) (*Buffer, error) {
	if sizeBytes <= 0 {
		return nil, fmt.Errorf("device: %s cannot allocate %d bytes", h.Name(), sizeBytes)
	}
	return h.Wrap(make([]byte, sizeBytes)), nil
}

// Wrap makes a buffer of memory.
func (h *Host) Wrap(mem []byte) *Buffer {
	size := uint64(len(mem))
	const page = 4096 // so that no two buffers touch
	end := h.nextAddr.Add(size/page*page + 2*page)
	return &Buffer{device: h, addr: end - size/page*page - page, sizeBytes: int64(size), host: mem}
}

// Bytes returns the memory of a buffer of a Host. No copy may be using what is read or
// written there.
func (b *Buffer) Bytes() []byte { return b.host }

// Free leaves the memory to the garbage collector.
func (h *Host) Free(b *Buffer) error { return nil }

// AllocHost allocates memory of Go.
func (h *Host) AllocHost(sizeBytes int64) ([]byte, error) {
	if sizeBytes <= 0 {
		return nil, fmt.Errorf("device: %s cannot allocate %d bytes", h.Name(), sizeBytes)
	}
	if err := h.memory("AllocHost", sizeBytes); err != nil {
		return nil, err
	}
	return make([]byte, sizeBytes), nil
}

// FreeHost leaves the memory to the garbage collector.
func (h *Host) FreeHost(mem []byte) error { return h.memory("FreeHost", int64(len(mem))) }

// Register does nothing: all memory will do.
func (h *Host) Register(mem []byte) error { return h.memory("Register", int64(len(mem))) }

// Unregister does nothing.
func (h *Host) Unregister(mem []byte) error { return h.memory("Unregister", int64(len(mem))) }

func (h *Host) memory(method string, sizeBytes int64) error {
	if h.o.Memory == nil {
		return nil
	}
	return h.o.Memory(method, sizeBytes)
}

// NewStream starts a goroutine, which the stream's Close ends.
func (h *Host) NewStream() (Stream, error) {
	s := &hostStream{host: h}
	s.more.L = &s.mu
	h.streams.Go(s.run)
	return s, nil
}

// NewEvent returns an event that has occurred.
func (h *Host) NewEvent() (Event, error) { return &hostEvent{host: h}, nil }

// Close waits for the streams.
func (h *Host) Close() error {
	h.streams.Wait()
	return nil
}

// hostStream is a queue of functions and the goroutine that calls them.
type hostStream struct {
	host *Host

	mu     sync.Mutex
	more   sync.Cond
	queue  []func()
	closed bool

	failed error // of the goroutine: the error of a copy, until an event has it
}

var errStreamClosed = errors.New("device: the stream is closed")

func (s *hostStream) put(do func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errStreamClosed
	}
	s.queue = append(s.queue, do)
	s.more.Signal()
	return nil
}

func (s *hostStream) run() {
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && !s.closed {
			s.more.Wait()
		}
		if len(s.queue) == 0 {
			s.mu.Unlock()
			return
		}
		do := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		do()
	}
}

func (s *hostStream) ToDevice(dst Place, src []byte) error {
	return s.copy(Copy{Place: dst, Mem: src, ToDevice: true})
}

func (s *hostStream) ToHost(dst []byte, src Place) error {
	return s.copy(Copy{Place: src, Mem: dst})
}

func (s *hostStream) copy(c Copy) error {
	if err := c.Place.Check(int64(len(c.Mem))); err != nil {
		return err
	}
	b := c.Place.Buffer
	switch {
	case b.device == nil || b.device != Device(s.host):
		return errors.New("device: a buffer of another device")
	case int64(len(b.host)) != b.sizeBytes: // made by NewBuffer
		return fmt.Errorf("device: %s has no memory at %#x; use Wrap", s.host.Name(), b.addr)
	}
	if refuse := s.host.o.Refuse; refuse != nil {
		if err := refuse(c); err != nil {
			return err
		}
	}
	return s.put(func() {
		if before := s.host.o.Before; before != nil {
			if err := before(c); err != nil {
				s.failed = errors.Join(s.failed, err)
				return
			}
		}
		mem := c.Place.Buffer.host[c.Place.Offset:]
		if c.ToDevice {
			copy(mem, c.Mem)
		} else {
			copy(c.Mem, mem)
		}
	})
}

func (s *hostStream) After(e Event) error {
	event, ok := e.(*hostEvent)
	if !ok {
		return errors.New("device: an event of another device")
	}
	if last := event.last.Load(); last != nil {
		return s.put(func() { <-last.occurred })
	}
	return nil
}

func (s *hostStream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.more.Signal()
	return nil
}

// hostEvent knows its last record.
type hostEvent struct {
	host *Host
	last atomic.Pointer[record]
}

type record struct {
	occurred chan struct{}
	err      error // set before it has occurred
}

func (e *hostEvent) Record(s Stream) error {
	stream, ok := s.(*hostStream)
	if !ok {
		return errors.New("device: a stream of another device")
	}
	r := &record{occurred: make(chan struct{})}
	err := stream.put(func() {
		r.err, stream.failed = stream.failed, nil
		close(r.occurred)
	})
	if err == nil {
		e.last.Store(r)
	}
	return err
}

func (e *hostEvent) Wait() error {
	if last := e.last.Load(); last != nil {
		<-last.occurred
		if last.err != nil {
			return last.err
		}
	}
	if e.host.o.WaitError != nil {
		return e.host.o.WaitError()
	}
	return nil
}

func (e *hostEvent) Close() error { return nil }
