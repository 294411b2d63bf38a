package cache_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// replace makes another writer's version of a block that of next.
func (t *things) replace(l kv.Layout, k kv.Key) {
	t.remove(k)
	for _, s := range filled(blocks(l, k)) {
		t.put(k, s.Index, inverted(s.Buf))
	}
}

func inverted(b []byte) []byte {
	out := bytes.Clone(b)
	for i := range out {
		out[i] ^= 0xff
	}
	return out
}

// versions loads shards and returns how many are of the first version, of that which
// replace has made, and missed.
func versions(t *testing.T, s kv.Store, shards []kv.Shard) (first, second, missed int) {
	t.Helper()
	for i, err := range begin(t, s.Load, shards).All() {
		switch want := content(make([]byte, len(shards[i].Buf)), shards[i].Key, shards[i].Index); {
		case errors.Is(err, kv.ErrMiss):
			missed++
		case err != nil:
			t.Fatal(err)
		case bytes.Equal(shards[i].Buf, want):
			first++
		case bytes.Equal(shards[i].Buf, inverted(want)):
			second++
		default:
			t.Fatalf("shard %d has wrong bytes", shards[i].Index)
		}
	}
	return first, second, missed
}

// If next's block is replaced while a part of it is in memory, a Load returns shards of one
// of the two alone, and the next one has the new block whole.
func TestLoadOfABlockThatNextHasReplaced(t *testing.T) {
	shelf := newShelf(small, newThings())
	s := cached(t, shelf, 8, cache.Options{})
	for n := range 20 {
		k := key(n)
		shelf.things.fill(small, k)
		if first, _, _ := versions(t, s, blocks(small, k)[:1+n%2]); first != 1+n%2 {
			t.Fatal("the first part cannot be loaded")
		}
		shelf.things.replace(small, k)
		first, second, _ := versions(t, s, blocks(small, k))
		if first > 0 && second > 0 {
			t.Fatalf("%d shards of the old block and %d of the new", first, second)
		}
		if _, second, _ := versions(t, s, blocks(small, k)); second != small.Shards() {
			t.Fatalf("then %d shards of the new block", second)
		}
		if n, _ := shelf.asked(k, 0); n > 2 {
			t.Errorf("the first shard was read %d times", n)
		}
	}
}

// A Load that wants nothing of what is in memory gets what next has now.
func TestLoadOfTheRestOfABlockThatNextHasReplaced(t *testing.T) {
	shelf := newShelf(small, newThings())
	s := cached(t, shelf, 8, cache.Options{})
	shelf.things.fill(small, key(1))
	versions(t, s, blocks(small, key(1))[:1])
	shelf.things.replace(small, key(1))
	if _, second, _ := versions(t, s, blocks(small, key(1))[1:]); second != small.Shards()-1 {
		t.Errorf("%d shards of the new block", second)
	}
	if _, second, _ := versions(t, s, blocks(small, key(1))); second != small.Shards() {
		t.Errorf("then %d", second)
	}
}
