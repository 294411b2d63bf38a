package blockhead

import "github.com/zeebo/xxh3"

// Digest computes the checksums of neighbouring shards from their bytes, which it is given
// in order and in pieces of any size, while the processor still has them in its cache.
type Digest struct {
	shardBytes int
	sums       []uint64
	begun      int          // bytes of the next shard that hasher has had
	hasher     *xxh3.Hasher // made for the first shard that comes in pieces
}

// NewDigest returns a Digest of n shards.
func NewDigest(shardBytes int64, n int) *Digest {
	return &Digest{shardBytes: int(shardBytes), sums: make([]uint64, 0, n)}
}

// Add takes the next piece.
func (d *Digest) Add(piece []byte) {
	for len(piece) > 0 {
		part := piece[:min(len(piece), d.shardBytes-d.begun)]
		piece = piece[len(part):]
		if len(part) == d.shardBytes {
			d.sums = append(d.sums, Sum(part))
			continue
		}
		if d.hasher == nil {
			d.hasher = xxh3.New()
		}
		_, _ = d.hasher.Write(part) // it has no errors
		if d.begun += len(part); d.begun == d.shardBytes {
			d.sums = append(d.sums, d.hasher.Sum64())
			d.hasher.Reset()
			d.begun = 0
		}
	}
}

// Sums returns the checksums of the shards that are complete.
func (d *Digest) Sums() []uint64 { return d.sums }
