package wire_test

import (
	"testing"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// The formulas of 2.1 give the numbers that clients use.
func TestVirtualInodes(t *testing.T) {
	for _, c := range []struct {
		what      string
		got, want uint64
	}{
		{"first registration", wire.InoIovFirst, wire.InoIovs - 65535},
		{"first key", wire.InoGetConfFirst, wire.InoGetConf - 1},
		{"first reply to a set", wire.InoSetConfFirst, wire.InoSetConf - 1},
		{"high submit link", wire.InoSubmitHigh, wire.InoIovs - 1},
		{"normal submit link", wire.InoSubmitNormal, wire.InoIovs - 2},
		{"low submit link", wire.InoSubmitLow, wire.InoIovs - 3},
		{"reply in the root", wire.TransientIno(0), 0xffffffe700000000},
		{"reply in directory 5", wire.TransientIno(5), 0xffffffe6fffffffb},
		{"reply in rm-rf", wire.TransientIno(wire.InoRmRf), 0xffffffe700000003},
	} {
		if c.got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, c.got, c.want)
		}
	}
	if wire.VirtualTime != 1685548800 {
		t.Error("the time of virtual inodes changed")
	}
}

func TestIsVirtual(t *testing.T) {
	const largestReal = 0x01ffffffffffffff
	for ino, want := range map[uint64]bool{
		0: false, 1: false, 2: false, largestReal: false, 0x0fffffffffffffff: false,
		1 << 60: true, 1 << 63: true,
		wire.InoVirt: true, wire.InoRmRf: true, wire.InoIovs: true, wire.InoSubmitLow: true,
		wire.InoIovFirst: true, wire.InoIovFirst - wire.MaxIovs + 1: true,
		wire.InoGetConf: true, wire.InoSetConf: true, wire.InoSetConfFirst - 16: true,
		wire.TransientIno(1): true, wire.TransientIno(largestReal): true, wire.TransientIno(wire.InoRmRf): true,
	} {
		if wire.IsVirtual(ino) != want {
			t.Errorf("%#x is virtual: %v", ino, !want)
		}
	}
	// The number ranges of the kinds of inodes do not overlap.
	bounds := []uint64{
		wire.InoSetConfFirst - 16, wire.InoSetConfFirst, wire.InoSetConf,
		wire.InoGetConfFirst - 16, wire.InoGetConfFirst, wire.InoGetConf,
		wire.InoIovFirst - wire.MaxIovs + 1, wire.InoIovFirst, wire.InoSubmitLow, wire.InoIovs,
		wire.InoRmRf, wire.InoVirt,
	}
	for i := 1; i < len(bounds); i++ {
		if bounds[i-1] >= bounds[i] {
			t.Errorf("%#x is not below %#x", bounds[i-1], bounds[i])
		}
	}
}
