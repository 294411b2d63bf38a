package wire_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// Case 25 and the table of 4.1.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		entries               int
		sizeBytes             int64
		ringLen               int32
		args, cqes, sqes, sem int64
	}{
		{1, 4336, 2, 16, 128, 176, 208},
		{100, 13840, 101, 16, 5672, 8096, 9712},
		{128, 16528, 129, 16, 7240, 10336, 12400},
		{1024, 102544, 1025, 16, 57416, 82016, 98416},
	} {
		if got := wire.RingBytes(c.entries); got != c.sizeBytes {
			t.Errorf("%d entries take %d bytes, want %d", c.entries, got, c.sizeBytes)
		}
		l, ok := wire.LayoutOf(c.sizeBytes)
		if !ok || l.RingLen != c.ringLen || l.Entries() != c.entries {
			t.Errorf("%d bytes: %+v, %v", c.sizeBytes, l, ok)
		}
		if l.ArgsOff(0) != c.args || l.CqeOff(0) != c.cqes || l.SqeOff(0) != c.sqes || l.SemOff() != c.sem {
			t.Errorf("%d entries: args %d, cqes %d, sqes %d, sem %d", c.entries, l.ArgsOff(0), l.CqeOff(0), l.SqeOff(0), l.SemOff())
		}
		last := l.RingLen - 1
		if l.ArgsOff(last)+wire.ArgsBytes != c.cqes || l.CqeOff(last)+wire.CqeBytes != c.sqes || l.SqeOff(last)+wire.SqeBytes != c.sem {
			t.Errorf("%d entries: the arrays do not touch", c.entries)
		}
	}
}

// Objects that are too small for a ring (case 21), or larger than markers can count.
func TestUsable(t *testing.T) {
	for sizeBytes, want := range map[int64]int{
		math.MinInt64: -1, -1: -1, 0: -1, 4096: -1, 4143: -1,
		4144: -1, 4239: -1,
		4240: 0, 4335: 0,
		4336: 1, 4431: 1, 4432: 2,
		math.MaxInt64: math.MaxInt32 - 1,
	} {
		if got := wire.Usable(sizeBytes); got != want {
			t.Errorf("%d bytes: %d usable, want %d", sizeBytes, got, want)
		}
		l, ok := wire.LayoutOf(sizeBytes)
		if ok != (want >= 1) || ok && l.Entries() != want || !ok && l != (wire.Layout{}) {
			t.Errorf("%d bytes: %+v, %v", sizeBytes, l, ok)
		}
	}
	for entries := range 5000 {
		if got := wire.Usable(wire.RingBytes(entries)); got != entries {
			t.Fatalf("an object for %d entries has %d", entries, got)
		}
	}
}

func TestMarkers(t *testing.T) {
	l := wire.Layout{RingLen: 5}
	for _, c := range []struct{ tail, head, count int32 }{
		{0, 0, 0}, {0, 4, 4}, {4, 0, 1}, {3, 3, 0}, {3, 2, 4}, {2, 3, 1},
	} {
		if got := l.Count(c.tail, c.head); got != c.count {
			t.Errorf("tail %d, head %d: %d filled, want %d", c.tail, c.head, got, c.count)
		}
		n, at := int32(0), c.tail
		for ; at != c.head; at = l.Next(at) {
			n++
		}
		if n != c.count {
			t.Errorf("tail %d, head %d: %d steps, want %d", c.tail, c.head, n, c.count)
		}
	}
	for i, want := range map[int32]bool{math.MinInt32: false, -1: false, 0: true, 4: true, 5: false, math.MaxInt32: false} {
		if l.Valid(i) != want {
			t.Errorf("marker %d is valid: %v", i, !want)
		}
	}
	// With the longest possible ring nothing overflows.
	l, _ = wire.LayoutOf(math.MaxInt64)
	if l.RingLen != math.MaxInt32 || l.Next(math.MaxInt32-1) != 0 || l.Count(math.MaxInt32-1, 0) != 1 || l.Count(0, math.MaxInt32-1) != math.MaxInt32-1 {
		t.Errorf("longest ring: %+v", l)
	}
}

// The offsets of the fields (4.2), byte by byte.
func TestEntryFields(t *testing.T) {
	var args [wire.ArgsBytes]byte
	for i := range args {
		args[i] = byte(i)
	}
	var a wire.Args
	a.Decode(&args)
	want := wire.Args{
		BufID:  wire.UUID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
		BufOff: 0x1716151413121110, FileIno: 0x1f1e1d1c1b1a1918, FileOff: 0x2726252423222120,
		Len: 0x2f2e2d2c2b2a2928, Userdata: 0x3736353433323130,
	}
	if a != want {
		t.Errorf("args %+v", a)
	}
	var s wire.Sqe
	s.Decode((*[wire.SqeBytes]byte)(args[:]))
	if s != (wire.Sqe{Index: 0x03020100, Userdata: 0x0f0e0d0c0b0a0908}) {
		t.Errorf("sqe %+v", s)
	}
	var c wire.Cqe
	c.Decode((*[wire.CqeBytes]byte)(args[:]))
	if c != (wire.Cqe{Index: 0x03020100, Result: 0x0f0e0d0c0b0a0908, Userdata: 0x1716151413121110}) {
		t.Errorf("cqe %+v", c)
	}
	if wire.OffSqeHead != 0 || wire.OffSqeTail != 4 || wire.OffCqeHead != 8 || wire.OffCqeTail != 12 || wire.OffArgs != 16 {
		t.Error("the offsets of the markers changed")
	}
}

// Encoding into dirty memory clears the padding.
func TestEncodeClearsPadding(t *testing.T) {
	sqe := [wire.SqeBytes]byte(bytes.Repeat([]byte{0xff}, wire.SqeBytes))
	(&wire.Sqe{Index: -1}).Encode(&sqe)
	if want := [wire.SqeBytes]byte{0xff, 0xff, 0xff, 0xff}; sqe != want {
		t.Errorf("sqe % x", sqe)
	}
	cqe := [wire.CqeBytes]byte(bytes.Repeat([]byte{0xaa}, wire.CqeBytes))
	(&wire.Cqe{Index: -2, Result: -5}).Encode(&cqe)
	want := [wire.CqeBytes]byte{0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if cqe != want {
		t.Errorf("cqe % x", cqe)
	}
}

// FuzzRingEntries: a decoded entry encodes to the same bytes, except for the padding.
func FuzzRingEntries(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		var args, args2 [wire.ArgsBytes]byte
		copy(args[:], b)
		var a wire.Args
		a.Decode(&args)
		a.Encode(&args2)
		if args2 != args {
			t.Fatalf("args % x became % x", args, args2)
		}

		var sqe, sqe2 [wire.SqeBytes]byte
		copy(sqe[:], b)
		var s wire.Sqe
		s.Decode(&sqe)
		s.Encode(&sqe2)
		clear(sqe[4:8])
		if sqe2 != sqe {
			t.Fatalf("sqe % x became % x", sqe, sqe2)
		}

		var cqe, cqe2 [wire.CqeBytes]byte
		copy(cqe[:], b)
		var c wire.Cqe
		c.Decode(&cqe)
		c.Encode(&cqe2)
		clear(cqe[4:8])
		if cqe2 != cqe {
			t.Fatalf("cqe % x became % x", cqe, cqe2)
		}
	})
}

// FuzzLayout: for an object of any size, the arrays and the semaphore lie inside it and
// valid markers step through all slots.
func FuzzLayout(f *testing.F) {
	f.Fuzz(func(t *testing.T, sizeBytes int64, marker int32) {
		l, ok := wire.LayoutOf(sizeBytes)
		if !ok {
			if wire.Usable(sizeBytes) >= 1 {
				t.Fatalf("%d bytes: no layout for %d entries", sizeBytes, wire.Usable(sizeBytes))
			}
			return
		}
		if l.Entries() < 1 || l.SemOff()%8 != 0 || l.SemOff()+wire.SemBytes > sizeBytes {
			t.Fatalf("%d bytes: %+v", sizeBytes, l)
		}
		if !l.Valid(marker) {
			return
		}
		next := l.Next(marker)
		if !l.Valid(next) || l.Count(marker, next) != 1 || l.Count(next, marker) != l.RingLen-1 {
			t.Fatalf("%d bytes: after %d comes %d", sizeBytes, marker, next)
		}
		for _, off := range []int64{l.ArgsOff(marker), l.CqeOff(marker), l.SqeOff(marker)} {
			if off < wire.OffArgs || off >= l.SemOff() || off%8 != 0 {
				t.Fatalf("%d bytes: slot %d at %d", sizeBytes, marker, off)
			}
		}
	})
}
