package wire_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// The numbers are composed as in <asm-generic/ioctl.h>.
func TestIoctlNumbers(t *testing.T) {
	const write, read = 1, 2
	for _, c := range []struct {
		got           uint32
		dir           uint32
		kind          byte
		number, bytes uint32
	}{
		{wire.IoctlGetMountName, read, 'h', 0, wire.MountNameBytes},
		{wire.IoctlGetPathOffset, read, 'h', 1, 4},
		{wire.IoctlGetMagic, read, 'h', 2, 4},
		{wire.IoctlGetVersion, read, 'h', 3, 4},
		{wire.IoctlRecursiveRm, read, 'h', 10, 4},
		{wire.IoctlFsync, read, 'h', 11, 4},
		{wire.IoctlHardlink, write, 'h', 12, wire.HardlinkBytes},
		{wire.IoctlPunchHole, write, 'h', 13, wire.PunchHoleBytes},
		{wire.IoctlMove, write, 'h', 14, wire.MoveBytes},
		{wire.IoctlRemove, write, 'h', 15, wire.RemoveBytes},
		{wire.IoctlGetFlags, read, 'f', 1, 8},
		{wire.IoctlSetFlags, write, 'f', 2, 8},
		{wire.IoctlFsGetXattr, read, 'X', 31, 28},
	} {
		if want := c.dir<<30 | c.bytes<<16 | uint32(c.kind)<<8 | c.number; c.got != want {
			t.Errorf("%c %d is %#x, want %#x", c.kind, c.number, c.got, want)
		}
	}
	if wire.Magic != 0x8f3f5fff || wire.InterfaceVersion != 1 {
		t.Error("magic or version changed")
	}
}

// field is a value at an offset of an ioctl argument.
type field struct {
	off   int
	value any // string, uint64, uint32 or byte
}

func argument(sizeBytes int, fields ...field) []byte {
	b := make([]byte, sizeBytes)
	for _, f := range fields {
		switch v := f.value.(type) {
		case string:
			copy(b[f.off:], v)
		case uint64:
			binary.LittleEndian.PutUint64(b[f.off:], v)
		case uint32:
			binary.LittleEndian.PutUint32(b[f.off:], v)
		case byte:
			b[f.off] = v
		}
	}
	return b
}

func TestDecodeHardlink(t *testing.T) {
	got, err := wire.DecodeHardlink(argument(264, field{0, uint64(7)}, field{8, "name\x00junk"}))
	if want := (wire.Hardlink{NewParentIno: 7, Name: "name"}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	// A name may fill its 255 bytes; the pad byte does not belong to it.
	got, err = wire.DecodeHardlink(argument(264, field{8, strings.Repeat("n", 256)}))
	if err != nil || got.Name != strings.Repeat("n", 255) {
		t.Errorf("%d bytes of name, %v", len(got.Name), err)
	}
}

func TestDecodeMove(t *testing.T) {
	// Upstream's tool pads with blanks.
	b := argument(536, field{0, uint64(3)}, field{8, "src"}, field{264, uint64(4)}, field{272, "dst"}, field{528, "\x01       "})
	got, err := wire.DecodeMove(b)
	want := wire.Move{SrcParentIno: 3, DstParentIno: 4, SrcName: "src", DstName: "dst", MoveToTrash: true}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	b[528] = 0
	if got, err := wire.DecodeMove(b); err != nil || got.MoveToTrash {
		t.Errorf("%+v, %v", got, err)
	}
	for _, b := range [][]byte{
		argument(536, field{8, "src"}),
		argument(536, field{272, "dst"}),
		argument(536, field{8, "a/b"}, field{272, "dst"}),
		argument(536, field{8, "src"}, field{272, ".."}),
	} {
		if got, err := wire.DecodeMove(b); err != syscall.EINVAL || got != (wire.Move{}) {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func TestDecodeRemove(t *testing.T) {
	got, err := wire.DecodeRemove(argument(272, field{0, uint64(9)}, field{8, "victim"}, field{264, "\x01       "}))
	if want := (wire.Remove{ParentIno: 9, Name: "victim", Recursive: true}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"", ".", "..", "/", "a/b", "../x"} {
		if _, err := wire.DecodeRemove(argument(272, field{8, name})); err != syscall.EINVAL {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

func TestDecodePunchHole(t *testing.T) {
	b := argument(16016, field{0, uint32(2)}, field{8, uint64(0xffff)},
		field{16, uint64(0)}, field{24, uint64(4096)}, field{8016, uint64(4096)}, field{8024, uint64(4096)},
		field{32, uint64(9)}) // beyond n: not read
	got, err := wire.DecodePunchHole(b)
	if want := []wire.Range{{Start: 0, End: 4096}, {Start: 4096, End: 4096}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for n, want := range map[uint32]error{0: nil, 1000: nil, 1001: syscall.EINVAL, 1 << 31: syscall.EINVAL, 1<<32 - 1: syscall.EINVAL} {
		got, err := wire.DecodePunchHole(argument(16016, field{0, n}))
		if err != want || err == nil && len(got) != int(n) {
			t.Errorf("%d ranges: %d, %v", n, len(got), err)
		}
	}
	if _, err := wire.DecodePunchHole(argument(16016, field{0, uint32(1)}, field{16, uint64(2)}, field{8016, uint64(1)})); err != syscall.EINVAL {
		t.Errorf("a range that ends before it starts: %v", err)
	}
	// The last range that fits.
	b = argument(16016, field{0, uint32(1000)}, field{16 + 8*999, uint64(1)}, field{8016 + 8*999, ^uint64(0)})
	if got, err := wire.DecodePunchHole(b); err != nil || got[999] != (wire.Range{Start: 1, End: ^uint64(0)}) {
		t.Errorf("last range: %v", err)
	}
}

// Case 73, sizes: an argument that is one byte too short or too long is refused.
func TestIoctlArgumentSizes(t *testing.T) {
	for what, sized := range map[string]struct {
		bytes  int
		decode func(b []byte) error
	}{
		"hardlink":   {264, func(b []byte) error { _, err := wire.DecodeHardlink(b); return err }},
		"punch hole": {16016, func(b []byte) error { _, err := wire.DecodePunchHole(b); return err }},
		"move":       {536, func(b []byte) error { _, err := wire.DecodeMove(b); return err }},
		"remove":     {272, func(b []byte) error { _, err := wire.DecodeRemove(b); return err }},
	} {
		for _, n := range []int{0, 1, sized.bytes - 1, sized.bytes + 1} {
			if err := sized.decode(make([]byte, n)); err != syscall.EINVAL {
				t.Errorf("%s of %d bytes: %v", what, n, err)
			}
		}
	}
}

// FuzzIoctlArguments: decoders take any bytes; accepted names can name a directory
// entry, and accepted ranges are in order and bounded in number.
func FuzzIoctlArguments(f *testing.F) {
	name := func(t *testing.T, err error, names ...string) {
		t.Helper()
		if err != nil {
			if err != syscall.EINVAL {
				t.Fatal(err)
			}
			return
		}
		for _, n := range names {
			if n == "" || n == "." || n == ".." || len(n) > 255 || strings.ContainsAny(n, "/\x00") {
				t.Fatalf("accepted as a name: %q", n)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// As it is, and as if the kernel had copied it into each argument.
		for _, sizeBytes := range []int{len(b), wire.HardlinkBytes, wire.PunchHoleBytes, wire.MoveBytes, wire.RemoveBytes} {
			arg := make([]byte, sizeBytes)
			copy(arg, b)
			h, err := wire.DecodeHardlink(arg)
			name(t, err, h.Name)
			m, err := wire.DecodeMove(arg)
			name(t, err, m.SrcName, m.DstName)
			r, err := wire.DecodeRemove(arg)
			name(t, err, r.Name)
			ranges, err := wire.DecodePunchHole(arg)
			name(t, err)
			if len(ranges) > wire.MaxPunchRanges {
				t.Fatalf("%d ranges", len(ranges))
			}
			for _, r := range ranges {
				if r.End < r.Start {
					t.Fatalf("range %+v", r)
				}
			}
		}
	})
}
