package blockhead

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

func example(shards int) *Head {
	h := &Head{Namespace: kv.Fingerprint{1, 2}, Key: kv.Key{3, 4}, BlockBytes: int64(shards) * 512, Sequence: 7}
	for i := range shards {
		h.Sums = append(h.Sums, uint64(i)*0x9e3779b97f4a7c15)
	}
	return h
}

func TestRoundTrip(t *testing.T) {
	for _, shards := range []int{1, 61, kv.MaxShards} {
		h := example(shards)
		raw := bytes.Repeat([]byte{0xff}, Size)
		h.Encode(raw)
		var got Head
		if err := got.Decode(raw); err != nil {
			t.Fatal(err)
		}
		if err := got.Match(h.Namespace, h.Key, kv.Layout{BlockBytes: h.BlockBytes, ShardBytes: 512}); err != nil {
			t.Error(err)
		}
		if got.Sequence != h.Sequence || got.Sums[shards-1] != h.Sums[shards-1] {
			t.Errorf("%+v became %+v", h, got)
		}
	}
}

// Every flipped bit of a record is noticed.
func TestEveryBitCounts(t *testing.T) {
	raw := make([]byte, Size)
	example(2).Encode(raw)
	for bit := range Size * 8 {
		raw[bit/8] ^= 1 << (bit % 8)
		var got Head
		if got.Decode(raw) == nil {
			t.Fatalf("bit %d flipped, and the record is accepted", bit)
		}
		raw[bit/8] ^= 1 << (bit % 8)
	}
}

func TestMatchNamesWhatDiffers(t *testing.T) {
	h, l := example(2), kv.Layout{BlockBytes: 1024, ShardBytes: 512}
	for name, err := range map[string]error{
		"namespace": h.Match(kv.Fingerprint{9}, h.Key, l),
		"key":       h.Match(h.Namespace, kv.Key{9}, l),
		"block":     h.Match(h.Namespace, h.Key, kv.Layout{BlockBytes: 2048, ShardBytes: 1024}),
		"shard":     h.Match(h.Namespace, h.Key, kv.Layout{BlockBytes: 1024, ShardBytes: 1024}),
	} {
		if err == nil {
			t.Errorf("another %s matches", name)
		}
	}
	if err := h.Match(h.Namespace, h.Key, l); err != nil {
		t.Error(err)
	}
}

func TestVerify(t *testing.T) {
	shard := []byte("some layer's keys and values")
	h := &Head{Sums: []uint64{Sum(shard)}}
	if err := h.Verify(0, shard); err != nil {
		t.Error(err)
	}
	shard[3] ^= 1
	if h.Verify(0, shard) == nil {
		t.Error("a flipped bit passes")
	}
}

func FuzzDecode(f *testing.F) {
	raw := make([]byte, Size)
	f.Add(bytes.Clone(raw))
	example(61).Encode(raw)
	f.Add(bytes.Clone(raw))
	f.Fuzz(func(t *testing.T, src []byte) {
		var h Head
		if err := h.Decode(src); err != nil {
			if errors.Is(err, ErrNone) && bytes.HasPrefix(src, magic[:]) && len(src) >= Size {
				t.Error("a record with our magic was taken for none")
			}
			return
		}
		again := make([]byte, Size)
		h.Encode(again)
		var second Head
		if err := second.Decode(again); err != nil {
			t.Fatal(err)
		}
	})
}
