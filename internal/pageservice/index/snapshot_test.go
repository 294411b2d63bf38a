package index

import (
	"slices"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// recordsOf makes records of bytes: any that decode reads, few spaces, ranks, pages and keys.
func recordsOf(b []byte) (recs [][]byte) {
	next := func() int {
		if len(b) == 0 {
			return 0
		}
		n := b[0]
		b = b[1:]
		return int(n)
	}
	for len(b) > 0 {
		what := next()
		rec := &record{kind: rankSet + kind(what%int(lastKind)), rank: what / 16 % 2, space: pageservice.Space{Set: []string{"vllm", "s"}[what/64%2]}}
		switch rec.kind {
		case rankSet:
			flags := next()
			rec.numPages, rec.dropped, rec.stale, rec.closed = int64(1+flags/8), flags&1 != 0, flags&2 != 0, flags&4 != 0
		case cleared, forgot, reopened:
		default:
			for n := next() % 4; n >= 0; n-- {
				page := next()
				rec.pages = append(rec.pages, uint32(page%16))
				rec.hashes = append(rec.hashes, uint64(page/16))
				rec.keys = append(rec.keys, string(rune('a'+page/16)))
			}
		}
		recs = append(recs, rec.encode())
	}
	return recs
}

// Whatever the records are, those of a snapshot give the same state, then and after any others.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte{0, 128, 1, 3, 1, 2, 3, 4, 2, 3, 1, 2, 3, 4, 3, 0, 1, 2, 1, 17, 33}, byte(3))
	f.Add([]byte{2, 3, 1, 17, 2, 3, 0, 128, 5, 4, 16, 255, 2, 1, 1, 17}, byte(2))
	f.Fuzz(func(t *testing.T, b []byte, at byte) {
		recs := recordsOf(b[:min(len(b), 4096)])
		cut := min(int(at), len(recs))
		whole, part := newIndex(nil, Options{}), newIndex(nil, Options{})
		replay := func(x *Index, recs [][]byte) {
			for _, rec := range recs {
				if err := x.replayRecord(rec); err != nil {
					t.Fatal(err)
				}
			}
		}
		replay(whole, recs[:cut])
		var snapshot [][]byte
		if err := whole.snapshot(func(rec []byte) error { snapshot = append(snapshot, slices.Clone(rec)); return nil }); err != nil {
			t.Fatal(err)
		}
		replay(part, snapshot)
		for range 2 {
			if whole.stateHash() != part.stateHash() {
				t.Fatalf("%q\n%q", describe(whole), describe(part))
			}
			replay(whole, recs[cut:])
			replay(part, recs[cut:])
		}
		for _, x := range []*Index{whole, part} {
			if err := x.replayed(); err == nil {
				if err := x.Check(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if whole.stateHash() != part.stateHash() {
			t.Fatal("after it was read")
		}
	})
}
