// Package storetest is the suite that every store, and every decorator of one,
// passes: each sentence of kv.Store's contract by a test of its own.
package storetest

import (
	"testing"

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
	// and how; nil where nothing is on a disk. Verified: it then never returns a wrong
	// byte.
	Damage   func(t testing.TB, dir string, seed uint64)
	Verified bool
}

// Run runs the suite.
func Run(t *testing.T, s Subject) {
	t.Fatal("not written yet")
}
