package sums

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

func block(key byte, sums ...uint64) *record {
	return &record{stamp: uint64(key) * 77, key: kv.Key{key}, shape: Shape{kv.Fingerprint{9}, 4096, len(sums)}, sums: sums}
}

func keysIn(src []byte) (keys []byte, end int) {
	end = scan(src, func(_ int, r *record) { keys = append(keys, r.key[0]) })
	return keys, end
}

func TestRecordRoundTrip(t *testing.T) {
	for _, shards := range []int{1, 2, kv.MaxShards, MostShards} {
		r := block(1, make([]uint64, shards)...)
		r.sums[shards-1] = 5
		raw := r.append(nil)
		var got record
		if len(raw) != r.bytes() || len(raw) > mostBytes || len(raw)%alignBytes != 0 || !got.decode(raw) {
			t.Fatalf("%d shards: %d bytes, not read back", shards, len(raw))
		}
		if got.stamp != r.stamp || got.key != r.key || got.shape != r.shape || got.sums[shards-1] != 5 {
			t.Errorf("%+v became %+v", r, got)
		}
	}
	forget := record{forget: true, stamp: 3, key: kv.Key{1}}
	var got record
	if !got.decode(forget.append(nil)) || !got.forget || got.stamp != 3 {
		t.Errorf("%+v", got)
	}
}

// A flipped bit costs the record that it is in, and no other.
func TestEveryBitCounts(t *testing.T) {
	var raw []byte
	for i := range byte(3) {
		raw = block(i, uint64(i), 7).append(raw)
	}
	length := len(raw) / 3
	for bit := range length * 8 {
		at := length + bit/8
		raw[at] ^= 1 << (bit % 8)
		if keys, end := keysIn(raw); !bytes.Equal(keys, []byte{0, 2}) || end != len(raw) {
			t.Fatalf("bit %d: %v, end at %d of %d", bit, keys, end, len(raw))
		}
		raw[at] ^= 1 << (bit % 8)
	}
}

func TestTornTail(t *testing.T) {
	raw := block(2, 5).append(block(1, 4).append(nil))
	for cut := range len(raw) / 2 {
		keys, end := keysIn(raw[:len(raw)/2+cut])
		if !bytes.Equal(keys, []byte{1}) || end != len(raw)/2 {
			t.Fatalf("cut at %d: %v, end at %d", cut, keys, end)
		}
	}
}

// Only records that were written are found, whatever is between them.
func FuzzScan(f *testing.F) {
	raw := block(2, 5, 6).append(block(1, 4).append(nil))
	f.Add(raw)
	f.Add(raw[:len(raw)-3])
	f.Add(append(bytes.Repeat([]byte("kSum"), 20), raw...))
	f.Add((&record{forget: true, stamp: 8}).append(bytes.Clone(raw)))
	f.Fuzz(func(t *testing.T, src []byte) {
		last := 0
		end := scan(src, func(at int, r *record) {
			if at < last || at%alignBytes != 0 {
				t.Errorf("a record at %d, after one that ends at %d", at, last)
			}
			last = at + r.bytes()
			if again := r.append(nil); !bytes.Equal(again, src[at:last]) {
				t.Errorf("read\n%x\nbut that is written\n%x", src[at:last], again)
			}
		})
		if end != last {
			t.Errorf("ends at %d, not %d", end, last)
		}
	})
}

// Random damage to a long log costs only the records that it hits.
func TestDamageIsLocal(t *testing.T) {
	const records = 1000
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		var raw []byte
		for i := range records {
			r := block(1, uint64(i))
			raw = r.append(raw)
		}
		size := len(raw) / records
		hit := map[int]bool{}
		for range 1 + rng.IntN(20) {
			at := rng.IntN(len(raw))
			raw[at] ^= byte(1 + rng.IntN(255))
			hit[at/size] = true
		}
		var found []uint64
		scan(raw, func(_ int, r *record) { found = append(found, r.sums[0]) })
		lost := records - len(found)
		if lost > len(hit) {
			t.Fatalf("%d records hit, %d lost", len(hit), lost)
		}
	}
}
