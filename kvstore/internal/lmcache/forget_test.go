package lmcache_test

import (
	"errors"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// forgetful knows the id of a key for so many more calls.
type forgetful struct {
	fake
	left *int
}

func (f forgetful) ID(key kv.Key) (keys.ID, bool) {
	if *f.left--; *f.left < 0 {
		return keys.ID{}, false
	}
	return f.fake.ID(key)
}

// A block whose id is forgotten at any time of a call is a miss, and no damaged one; a Delete that
// leaves it is an error.
func TestIDsThatForget(t *testing.T) {
	dir := t.TempDir()
	key := kv.Key{15: 1}
	for n := range 12 {
		o := in(dir)
		o.IDs = fake{}
		whole := open(t, o)
		save(t, whole, key)
		left := n
		o.IDs, o.Engine = forgetful{fake{}, &left}, nil
		s := open(t, o)
		if err := load(t, s, key); err != nil && (!errors.Is(err, kv.ErrMiss) || errors.Is(err, kv.ErrCorrupt)) {
			t.Errorf("after %d calls: %v", n, err)
		}
		if damaged := s.Stats().CorruptBlocks; damaged > 0 {
			t.Errorf("after %d calls: %d blocks are damaged", n, damaged)
		}
		left = n
		if err := s.Delete(t.Context(), []kv.Key{key}); err == nil && has(t, whole, key) {
			t.Errorf("after %d calls: Delete left the block, and returned no error", n)
		}
	}
}
