package ucmfiles

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/kv3fs/kv3fs/internal/blockhead"
	"github.com/kv3fs/kv3fs/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// However a run is cut, its shards' checksums are those of each as a whole.
func TestDigest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, shardBytes := range []int{1, 7, 1024, 1088, 1089, 5000, 300_000} {
		for range 20 {
			n := 1 + rng.IntN(4)
			buf := make([]byte, n*shardBytes)
			for i := range buf {
				buf[i] = byte(rng.Uint32())
			}
			s := &Store{o: Options{Layout: kv.Layout{BlockBytes: int64(len(buf)), ShardBytes: int64(shardBytes)}}}
			d := s.newDigest(run{n: n, buf: buf})
			for rest := buf; len(rest) > 0; {
				cut := 1 + rng.IntN(min(len(rest), 2*shardBytes))
				d.add(rest[:cut])
				rest = rest[cut:]
			}
			if len(d.sums) != n {
				t.Fatalf("%d checksums of %d shards", len(d.sums), n)
			}
			for i, sum := range d.sums {
				if want := blockhead.Sum(buf[i*shardBytes:][:shardBytes]); sum != want {
					t.Fatalf("shard %d of %d bytes: %x instead of %x", i, shardBytes, sum, want)
				}
			}
		}
	}
}

// blind is an engine that shows no pieces.
type blind struct{ transfer.Engine }

func (e blind) Do(ctx context.Context, ops []transfer.Op) {
	for i := range ops {
		ops[i].Piece = nil
	}
	e.Engine.Do(ctx, ops)
}

// What one engine has written another one finds right: with pieces and without.
func TestEngineThatShowsNoPieces(t *testing.T) {
	l := kv.Layout{BlockBytes: 1_200_000, ShardBytes: 600_000}
	buf := make([]byte, l.BlockBytes)
	for i := range buf {
		buf[i] = byte(i * i >> 8)
	}
	shards := l.ByBlock([]kv.Key{{1}}, [][]byte{buf})
	for name, wraps := range map[string][2]func(transfer.Engine) transfer.Engine{
		"written": {func(e transfer.Engine) transfer.Engine { return blind{e} }, func(e transfer.Engine) transfer.Engine { return e }},
		"read":    {func(e transfer.Engine) transfer.Engine { return e }, func(e transfer.Engine) transfer.Engine { return blind{e} }},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Layout: l, Roots: []string{t.TempDir()}}
			s := openOver(t, o, wraps[0])
			task, err := s.Dump(t.Context(), shards)
			wait(t, task, err)
			s = openOver(t, o, wraps[1])
			task, err = s.Load(t.Context(), shards)
			wait(t, task, err)
			if st := s.Stats(); st.UnverifiedShards != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}
