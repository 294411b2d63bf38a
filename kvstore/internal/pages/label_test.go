package pages

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

func exampleLabel() label {
	return label{rank: 3, namespace: namespace, layout: layout, strideBytes: strideOf(layout), pages: 17, id: [16]byte{1, 2, 3}}
}

func TestLabelRoundTrip(t *testing.T) {
	l := exampleLabel()
	got, err := decodeLabel(l.encode())
	if err != nil || got != l {
		t.Fatalf("%+v became %+v, %v", l, got, err)
	}
}

func TestEveryBitOfALabelCounts(t *testing.T) {
	l := exampleLabel()
	raw := l.encode()
	for bit := range len(raw) * 8 {
		raw[bit/8] ^= 1 << (bit % 8)
		if _, err := decodeLabel(raw); err == nil {
			t.Fatalf("bit %d flipped, and the label is accepted", bit)
		}
		raw[bit/8] ^= 1 << (bit % 8)
	}
}

// A page has room for its block and its record, at multiples of 4096.
func TestStride(t *testing.T) {
	for _, c := range []struct{ block, head, stride int64 }{
		{1, 4096, 8192}, {4096, 4096, 8192}, {4097, 8192, 12288}, {1 << 21, 1 << 21, 1<<21 + 4096},
	} {
		l := kv.Layout{BlockBytes: c.block, ShardBytes: c.block}
		if headAt(l) != c.head || strideOf(l) != c.stride {
			t.Errorf("block of %d: record at %d, page of %d", c.block, headAt(l), strideOf(l))
		}
	}
}

func FuzzDecodeLabel(f *testing.F) {
	l := exampleLabel()
	f.Add(l.encode())
	f.Add([]byte("kv3fsPGF"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := decodeLabel(raw)
		if err != nil {
			return
		}
		if got.pages < 1 || got.sizeBytes() <= 0 || got.layout.Check() != nil {
			t.Fatalf("%+v", got)
		}
		if again, err := decodeLabel(got.encode()); err != nil || again != got {
			t.Fatalf("%+v became %+v, %v", got, again, err)
		}
	})
}
