package blockfiles

import (
	"context"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// blind is an engine that does not call Piece.
type blind struct{ transfer.Engine }

func (e blind) Do(ctx context.Context, ops []transfer.Op) {
	for i := range ops {
		ops[i].Piece = nil
	}
	e.Engine.Do(ctx, ops)
}

// A block that was written by an engine that calls Piece can be loaded by one that does
// not, and the reverse.
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
			task, err := s.Save(t.Context(), shards)
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
