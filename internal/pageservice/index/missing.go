package index

import (
	"context"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// A damaged log may lack its newest records. They may have given any page to another
// writer, so no key can be trusted to have the page that it had before them. Then the
// start forgets all keys, and the ranks give no pages out until clients have stopped using
// those that they learned of before.

// anySpace stands for spaces that the log does not know, although their pages may be in use: it
// is kept as a space of which a rank was forgotten.
var anySpace = pageservice.Space{}

// closedUntil is when a rank that was unknown may give pages out.
func (x *Index) closedUntil() int64 {
	s := x.find(anySpace)
	if s == nil {
		return 0
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.closedUntil
}

// forgetAll forgets all keys, after the log was read.
func (x *Index) forgetAll() {
	keys := 0
	for _, s := range x.all() {
		keys += s.byKey.len
		for _, r := range s.ranks {
			s.dropPages(r)
			r.mentioned = 0 // see logForgotten
			r.closedUntil = x.longestQuarantine()
		}
		s.entries, s.byKey = table{}, newKeyMap(0)
		s.recount()
		s.countMemory()
		s.assert()
	}
	x.findOrCreate(anySpace).close(x.longestQuarantine())
	x.o.Logger.Error("the page index is damaged: its last change may be missing, so it forgets all keys, and gives no page out for a while",
		"cause", x.missing, "keys", keys, "seconds", x.longestQuarantine()/1e9)
}

// logForgotten logs what forgetAll did. If that fails the index cannot be opened: the log
// would be taken for whole after its next write.
func (x *Index) logForgotten() error {
	if x.missing == "" {
		return nil
	}
	recs := x.find(anySpace).encode([]*record{{kind: forgot}})
	for _, s := range x.all() {
		for _, r := range s.ranks {
			rec := s.rankRecord(r)
			rec.dropped = true
			recs = append(recs, s.encode([]*record{rec})...)
		}
	}
	ctx := context.Background()
	if err := outcome(ctx, x.log.Append(func(error) {}, recs...)(ctx)); err != nil {
		return fmt.Errorf("%w (%s, so all keys have to be forgotten)", err, x.missing)
	}
	return nil
}
