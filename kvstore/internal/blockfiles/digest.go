package blockfiles

import (
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// digested calls then when the checksums of a run that was moved are known: at once if
// the engine has shown the pieces, else when the pool has computed them.
func (s *Store) digested(r batch.Run, d *blockhead.Digest, then func()) {
	if len(d.Sums()) == r.N {
		then()
		return
	}
	s.compute.Go(workerpool.Job{Run: func() {
		d.Add(r.Buf)
		then()
	}})
}
