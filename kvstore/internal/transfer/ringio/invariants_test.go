//go:build invariants

package ringio

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

func TestCompletingAMoveTwiceIsSeen(t *testing.T) {
	n := 0
	m := &move{op: transfer.Op{Done: func(int, error) { n++ }}}
	m.settle()
	if !panics(m.settle) || n != 1 {
		t.Errorf("a move was completed %d times", n)
	}
}

func TestReleasingAnEntryTwiceIsSeen(t *testing.T) {
	r := &ring{d: &direction{}, entries: make([]entry, 1)}
	r.entries[0] = entry{state: ready, chunk: -1}
	r.release(0)
	if !panics(func() { r.release(0) }) {
		t.Error("a free entry was released")
	}
}
