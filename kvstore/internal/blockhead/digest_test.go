package blockhead

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// The sums are those of the shards, whatever pieces the bytes come in.
func TestDigest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		shardBytes, n := []int{1, 7, 1024, 1088, 1089, 5000, 100_000}[i%7], 1+rng.IntN(5)
		all := make([]byte, shardBytes*n)
		for i := range all {
			all[i] = byte(rng.Uint32())
		}
		var want []uint64
		for shard := range slices.Chunk(all, shardBytes) {
			want = append(want, Sum(shard))
		}
		d := NewDigest(int64(shardBytes), n)
		for rest := all; len(rest) > 0; {
			piece := rest[:min(len(rest), 1+rng.IntN(2*shardBytes))]
			d.Add(piece)
			rest = rest[len(piece):]
		}
		if !slices.Equal(d.Sums(), want) {
			t.Fatalf("%d shards of %d bytes: %x, want %x", n, shardBytes, d.Sums(), want)
		}
	}
}

func TestDigestOfLess(t *testing.T) {
	d := NewDigest(10, 2)
	d.Add(make([]byte, 19))
	if len(d.Sums()) != 1 {
		t.Errorf("%d sums of a shard and nine tenths", len(d.Sums()))
	}
}
