package ucmfiles

import (
	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/internal/blockhead"
)

// digest computes the checksums of a run's shards from pieces of it, in order.
type digest struct {
	run        run
	shardBytes int
	sums       []uint64
	begun      int          // bytes of the next shard that hasher has had
	hasher     *xxh3.Hasher // made for the first shard that comes in pieces
}

func (s *Store) newDigest(r run) *digest {
	return &digest{run: r, shardBytes: int(s.o.Layout.ShardBytes), sums: make([]uint64, 0, r.n)}
}

func (d *digest) add(piece []byte) {
	for len(piece) > 0 {
		part := piece[:min(len(piece), d.shardBytes-d.begun)]
		piece = piece[len(part):]
		if len(part) == d.shardBytes {
			d.sums = append(d.sums, blockhead.Sum(part))
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

// digested calls then when a run that was moved has all of its checksums: at once,
// where the engine has shown the pieces, or when one of the minds has gone through it.
func (s *Store) digested(d *digest, then func()) {
	if len(d.sums) == d.run.n {
		then()
		return
	}
	s.minds.do(func() {
		d.add(d.run.buf)
		then()
	})
}
