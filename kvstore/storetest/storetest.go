// Package storetest is the suite that every store, and every decorator of one,
// passes: each sentence of kv.Store's contract by a test of its own, named for what
// holds.
package storetest

import (
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Options are what the suite wants of a store it opens.
type Options struct {
	Layout    kv.Layout
	Namespace kv.Fingerprint
	Blocks    int // that it must hold at least
}

// Subject is a store under test.
type Subject struct {
	// Open opens the store over dir, an empty directory at first. Called again after
	// Close with the same dir it opens what is there. It ends the test on an error.
	Open func(t testing.TB, dir string, o Options) kv.Store

	// Durable: what was flushed is there after Close and Open.
	Durable bool

	// Discards: it takes blocks and keeps none, as Empty does.
	Discards bool

	// Damage changes stored bytes below dir of a closed store, seed deciding which
	// and how; nil where nothing is on a disk. The store must still open. Verified: it
	// then never returns a wrong byte.
	Damage   func(t testing.TB, dir string, seed uint64)
	Verified bool

	// Seeds is how many of them Damage gets; 40, with -short 8.
	Seeds int

	// AlignBytes: sizes of shards are multiples of it; 0 where any will do.
	AlignBytes int64

	// OneNamespace: over the dir of one namespace Open refuses another.
	OneNamespace bool

	// Patience is how long one call or batch may take before it counts as hung; 30 s.
	Patience time.Duration
}

// Run runs the suite.
func Run(t *testing.T, s Subject) {
	if s.Patience == 0 {
		s.Patience = 30 * time.Second
	}
	if s.Seeds == 0 {
		s.Seeds = 40
		if testing.Short() {
			s.Seeds = 8
		}
	}
	s.AlignBytes = max(s.AlignBytes, 1)
	for _, group := range []map[string]func(*world){
		looking, moving, assembling, owning, refusing, watching, cancelling, sharing, lasting, counting, closing, damaging,
	} {
		for name, test := range group {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, s)
				test(w)
				w.end()
			})
		}
	}
}
