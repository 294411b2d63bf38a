package hogs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
)

// fill writes the content that belongs to a seed. Every 8 bytes differ from those at other
// places and of other seeds, so that bytes of the wrong place or an old write are found.
func fill(b []byte, seed uint64) {
	var word [8]byte
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(word[:], (seed<<32+uint64(i/8)+1)*0x9E3779B97F4A7C15)
		copy(b[i:], word[:])
	}
}

// wrongByte is what check has found.
type wrongByte struct {
	At        int
	Got, Want byte
}

func (w wrongByte) Error() string {
	return fmt.Sprintf("byte %d is %#x, want %#x", w.At, w.Got, w.Want)
}

// check compares b with the content of a seed. The error is of type wrongByte.
func check(b []byte, seed uint64) error {
	want := make([]byte, len(b))
	fill(want, seed)
	return compare(b, want)
}

// compare is check with the content at hand.
func compare(b, want []byte) error {
	if bytes.Equal(b, want) {
		return nil
	}
	for i := range b {
		if b[i] != want[i] {
			return wrongByte{i, b[i], want[i]}
		}
	}
	panic("unreachable: they differ")
}

// A check that cannot fail would make the whole soak worthless.
func TestPlantedWrongByte(t *testing.T) {
	b := make([]byte, 4099)
	fill(b, 7)
	if err := check(b, 7); err != nil {
		t.Error(err)
	}
	for _, at := range []int{0, 1, 4095, 4096, 4098} {
		b[at] ^= 1
		if err := check(b, 7); err == nil || err.(wrongByte).At != at {
			t.Errorf("byte %d is wrong, and check says %v", at, err)
		}
		b[at] ^= 1
	}
	if check(b, 8) == nil {
		t.Error("the content of another seed passes")
	}
	if check(b[8:], 7) == nil {
		t.Error("content of another place passes")
	}
	var f figures
	f.add(5, wrongByte{1, 2, 3})
	f.add(5, fmt.Errorf("read: %w", wrongByte{1, 2, 3}))
	f.add(5, fmt.Errorf("read: EIO"))
	f.add(5, nil)
	if f.Wrong != 2 || len(f.Errors) != 3 || len(f.Nanos) != 4 {
		t.Errorf("figures: %+v", f)
	}
}
