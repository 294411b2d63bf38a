package device

import (
	"bytes"
	"errors"
	"math"
	"testing"
)

// lane is a stream and an event of a Host that a test closes.
func lane(t *testing.T, h *Host) (Stream, Event) {
	t.Helper()
	s, err := h.NewStream()
	e, err2 := h.NewEvent()
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), e.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCopies(t *testing.T) {
	h := NewHost(HostOptions{})
	s, e := lane(t, h)
	b, err := h.Alloc(10)
	must(t, err)
	must(t, s.ToDevice(b.At(2), []byte("abc")))
	must(t, s.ToDevice(b.At(4), []byte("xyz")))
	got := make([]byte, 6)
	must(t, s.ToHost(got, b.At(1)))
	must(t, e.Record(s))
	must(t, e.Wait())
	if want := []byte("\x00abxyz"); !bytes.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A copy happens when it is its turn, in the order of its stream, and after the events that
// the stream waits for; an event occurs after what it covers and not before.
func TestOrder(t *testing.T) {
	turn := make(chan struct{})
	h := NewHost(HostOptions{Before: func(c Copy) error {
		if c.ToDevice {
			<-turn
		}
		return nil
	}})
	one, first := lane(t, h)
	two, second := lane(t, h)
	b, err := h.Alloc(4)
	must(t, err)
	must(t, one.ToDevice(b.At(0), []byte("late")))
	must(t, first.Record(one))
	must(t, two.After(first))
	got := make([]byte, 4)
	must(t, two.ToHost(got, b.At(0)))
	must(t, second.Record(two))
	occurred := make(chan error)
	go func() { occurred <- second.Wait() }()
	select {
	case <-occurred:
		t.Fatal("the second stream did not wait for the first")
	default:
	}
	close(turn)
	must(t, <-occurred)
	if string(got) != "late" {
		t.Errorf("%q was read before it was written", got)
	}
}

func TestErrorsOfCopies(t *testing.T) {
	broken, refused := errors.New("broken"), errors.New("refused")
	n := 0
	h := NewHost(HostOptions{
		Before: func(c Copy) error {
			if n++; n == 1 {
				return broken
			}
			return nil
		},
		Refuse: func(c Copy) error {
			if len(c.Mem) == 3 {
				return refused
			}
			return nil
		},
	})
	s, e := lane(t, h)
	b, err := h.Alloc(4)
	must(t, err)
	if err := s.ToDevice(b.At(0), make([]byte, 3)); err != refused {
		t.Errorf("refused: %v", err)
	}
	must(t, s.ToDevice(b.At(0), []byte("1234")))
	must(t, e.Record(s))
	if err := e.Wait(); !errors.Is(err, broken) {
		t.Errorf("a copy that failed: %v", err)
	}
	must(t, s.ToDevice(b.At(0), []byte("5678")))
	must(t, e.Record(s))
	must(t, e.Wait())
	if string(b.Bytes()) != "5678" {
		t.Errorf("%q", b.Bytes())
	}
}

func TestPlaces(t *testing.T) {
	h, other := NewHost(HostOptions{}), NewHost(HostOptions{})
	s, _ := lane(t, h)
	b, foreign := h.Wrap(make([]byte, 8)), other.Wrap(make([]byte, 8))
	for name, p := range map[string]Place{
		"no buffer": {}, "before": b.At(-1), "behind": b.At(5), "far": b.At(math.MaxInt64), "another device": foreign.At(0),
	} {
		if err := s.ToDevice(p, make([]byte, 4)); err == nil {
			t.Errorf("%s: written", name)
		}
		if err := s.ToHost(make([]byte, 4), p); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	if p := b.At(4); p.Addr() != b.Addr()+4 || p.Check(4) != nil || p.Check(-1) == nil {
		t.Errorf("%+v", p)
	}
	for _, size := range []int64{0, -1} {
		if _, err := h.Alloc(size); err == nil {
			t.Errorf("%d bytes were allocated", size)
		}
		if _, err := NewBuffer(h, 1<<40, size); err == nil {
			t.Errorf("a buffer has %d bytes", size)
		}
	}
	named, err := NewBuffer(h, 1<<40, 8) // an address is no memory of a Host
	must(t, err)
	for _, at := range []int64{0, 4} {
		if err := s.ToDevice(named.At(at), make([]byte, 4)); err == nil {
			t.Errorf("written to offset %d of memory that is not there", at)
		}
	}
	if _, err := NewBuffer(h, math.MaxUint64-4, 8); err == nil {
		t.Error("a buffer goes beyond the end of all memory")
	}
	if c := h.Wrap(make([]byte, 5000)); c.Addr() < b.Addr()+uint64(b.SizeBytes()) || h.Wrap(nil).Addr() < c.Addr()+5000 {
		t.Error("buffers overlap")
	}
}
