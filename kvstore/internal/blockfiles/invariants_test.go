//go:build invariants

package blockfiles

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

func TestReleasingAHandleTwiceIsSeen(t *testing.T) {
	hs := newHandles(1)
	h := &handle{key: kv.Key{1}}
	hs.add(h, hs.epoch())
	hs.give(h)
	defer func() {
		if recover() == nil {
			t.Error("a handle without users was released")
		}
	}()
	hs.give(h)
}
