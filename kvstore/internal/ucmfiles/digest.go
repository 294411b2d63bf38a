package ucmfiles

import "github.com/kv3fs/kv3fs/kvstore/internal/blockhead"

// digested calls then when a run that was moved has all of its checksums: at once,
// where the engine has shown the pieces, or when one of the minds has gone through it.
func (s *Store) digested(r run, d *blockhead.Digest, then func()) {
	if len(d.Sums()) == r.n {
		then()
		return
	}
	s.minds.do(func() {
		d.Add(r.buf)
		then()
	})
}
