package wire_test

import (
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/wire"
)

const uuidText = "3fa85f64-5717-4562-b3fc-2c963f66afa6"

func testUUID() wire.UUID {
	return wire.UUID{0x3f, 0xa8, 0x5f, 0x64, 0x57, 0x17, 0x45, 0x62, 0xb3, 0xfc, 0x2c, 0x96, 0x3f, 0x66, 0xaf, 0xa6}
}

// Accepted names, with their meaning and their canonical spelling.
func TestParseLink(t *testing.T) {
	for _, c := range []struct {
		items string // after the uuid
		want  wire.Link
		name  string // canonical items
	}{
		{"", wire.Link{}, ""},
		{".b1048576", wire.Link{BlockBytes: 1 << 20}, ".b1048576"},
		{".b12x", wire.Link{BlockBytes: 12}, ".b12"},
		{".b9223372036854775808", wire.Link{BlockBytes: math.MaxInt64}, ".b9223372036854775807"},
		{".r0.t0", wire.Link{Ring: true}, ".r0.t0"},
		{".r", wire.Link{Ring: true}, ".r0.t0"},
		{".rx", wire.Link{Ring: true}, ".r0.t0"},
		{".w32.ph.t0", wire.Link{Ring: true, Write: true, IODepth: 32, Priority: wire.High}, ".w32.ph.t0"},
		{".r-8.t5", wire.Link{Ring: true, IODepth: -8, TimeoutMs: 5}, ".r-8.t5"},
		{".r0.t0.f10", wire.Link{Ring: true, Flags: 2}, ".r0.t0.f10"},
		{".r128.t0", wire.Link{Ring: true, IODepth: 128}, ".r128.t0"}, // case 18: the bound is the object's
		// Case 22: any order.
		{".t0.ph.w4", wire.Link{Ring: true, Write: true, IODepth: 4, Priority: wire.High}, ".w4.ph.t0"},
		// A repeated item overrides, in direction as well.
		{".r1.w2.t3.t4", wire.Link{Ring: true, Write: true, IODepth: 2, TimeoutMs: 4}, ".w2.t4"},
		// Empty and unknown items are ignored.
		{"..r0..t0.", wire.Link{Ring: true}, ".r0.t0"},
		{".gdr.d0", wire.Link{}, ""},
		// Only the first letter of a priority counts.
		{".r0.p.t0", wire.Link{Ring: true}, ".r0.t0"},
		{".r0.pnormal", wire.Link{Ring: true}, ".r0.t0"},
		{".r0.plow", wire.Link{Ring: true, Priority: wire.Low}, ".r0.pl.t0"},
		// Numbers as atoll and strtoull accept them.
		{".r +7.t \t1", wire.Link{Ring: true, IODepth: 7, TimeoutMs: 1}, ".r7.t1"},
		{".r0.f", wire.Link{Ring: true}, ".r0.t0"},
		{".r0.f +1", wire.Link{Ring: true, Flags: 1}, ".r0.t0.f1"},
		{".r0.f-1", wire.Link{Ring: true, Flags: math.MaxUint64}, ".r0.t0.f" + strings.Repeat("1", 64)},
		{".r-2147483648.t2147483647", wire.Link{Ring: true, IODepth: math.MinInt32, TimeoutMs: math.MaxInt32}, ".r-2147483648.t2147483647"},
		// A ring may itself carry a block size.
		{".b4096.r0.t0", wire.Link{BlockBytes: 4096, Ring: true}, ".b4096.r0.t0"},
	} {
		c.want.ID = testUUID()
		got, err := wire.ParseLink(uuidText + c.items)
		if err != nil || got != c.want {
			t.Errorf("%q: %+v, %v; want %+v", c.items, got, err, c.want)
		}
		if name := got.Name(); name != uuidText+c.name {
			t.Errorf("%q: canonical name %q, want %q", c.items, name, c.name)
		}
	}
}

func TestParseLinkRefuses(t *testing.T) {
	for name, want := range map[string]error{
		// Case 16.
		"foo":                syscall.EIO,
		"":                   syscall.EIO,
		".r0.t0":             syscall.EIO,
		"submit-ios":         syscall.EIO,
		"foo.b0":             syscall.EIO, // a bad uuid comes before bad items
		"{" + uuidText + "}": syscall.EIO,
		uuidText + " .r0":    syscall.EIO,
		// Case 17.
		uuidText + ".b0":       syscall.EINVAL,
		uuidText + ".b":        syscall.EINVAL,
		uuidText + ".b-1":      syscall.EINVAL,
		uuidText + ".t5":       syscall.EINVAL,
		uuidText + ".t0":       syscall.EINVAL,
		uuidText + ".pn":       syscall.EINVAL,
		uuidText + ".f":        syscall.EINVAL,
		uuidText + ".r0.px":    syscall.EINVAL,
		uuidText + ".r0.pH":    syscall.EINVAL,
		uuidText + ".r0.t-1":   syscall.EINVAL,
		uuidText + ".r0.t0.f2": syscall.EINVAL,
		// Numbers that the fields cannot hold.
		uuidText + ".r2147483648":                     syscall.EINVAL,
		uuidText + ".w-2147483649":                    syscall.EINVAL,
		uuidText + ".r0.t2147483648":                  syscall.EINVAL,
		uuidText + ".r0.f1" + strings.Repeat("0", 64): syscall.EINVAL,
		// Flags are one number over the whole item, or empty.
		uuidText + ".r0.f-":   syscall.EINVAL,
		uuidText + ".r0.f ":   syscall.EINVAL,
		uuidText + ".r0.f1_0": syscall.EINVAL,
		uuidText + ".r0.f+-1": syscall.EINVAL,
		uuidText + ".r0.f1 ":  syscall.EINVAL,
		uuidText + ".r0.f0b1": syscall.EINVAL,
	} {
		if l, err := wire.ParseLink(name); err != want || l != (wire.Link{}) {
			t.Errorf("%q: %+v, %v; want %v", name, l, err, want)
		}
	}
}

func TestDecimalFlagsAlias(t *testing.T) {
	for name, want := range map[string]string{
		uuidText + ".r0.t0.f2":                    uuidText + ".r0.t0.f10",
		uuidText + ".r0.t0.f3":                    uuidText + ".r0.t0.f11",
		uuidText + ".r0.t0.f10":                   uuidText + ".r0.t0.f1010",
		uuidText + ".r0.t0.f18446744073709551615": uuidText + ".r0.t0.f" + strings.Repeat("1", 64),
		// Below 2 both spellings are the same.
		uuidText + ".r0.t0.f0":                    "",
		uuidText + ".r0.t0.f1":                    "",
		uuidText + ".r0.t0":                       "",
		uuidText + ".r0.f2.t0":                    "",
		uuidText + ".r0.t0.f":                     "",
		uuidText + ".r0.f-2":                      "",
		uuidText + ".r0.t0.f18446744073709551616": "",
		"": "",
	} {
		created, ok := wire.DecimalFlagsAlias(name)
		if created != want || ok != (want != "") {
			t.Errorf("%q: %q, %v; want %q", name, created, ok, want)
		}
	}
}

// FuzzParseLink: an accepted link is within its documented bounds and parses again from
// its canonical name. The decimal spelling with which upstream's library unlinks a ring
// converts to the name under which it was created.
func FuzzParseLink(f *testing.F) {
	f.Fuzz(func(t *testing.T, name string) {
		l, err := wire.ParseLink(name)
		if err != nil {
			if err != syscall.EIO && err != syscall.EINVAL || l != (wire.Link{}) {
				t.Fatalf("%+v, %v", l, err)
			}
			return
		}
		if l.BlockBytes < 0 || l.TimeoutMs < 0 || l.Priority < wire.High || l.Priority > wire.Low {
			t.Fatalf("out of bounds: %+v", l)
		}
		if !l.Ring && l != (wire.Link{ID: l.ID, BlockBytes: l.BlockBytes}) {
			t.Fatalf("an iov with attributes of a ring: %+v", l)
		}
		canonical := l.Name()
		again, err := wire.ParseLink(canonical)
		if err != nil || again != l {
			t.Fatalf("%q means %+v, but its canonical name %q means %+v, %v", name, l, canonical, again, err)
		}
		if alias := decimalName(l); l.Flags >= 2 {
			if created, ok := wire.DecimalFlagsAlias(alias); !ok || created != canonical {
				t.Fatalf("alias %q converts to %q, want %q", alias, created, canonical)
			}
		}
	})
}
