package index

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// A keyMap finds what a map finds, also when hashes collide in part or in whole.
func TestKeyMapIsAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bits := rapid.SampledFrom([]uint64{0, 3, 1<<32 - 1, 1<<63 | 7, ^uint64(0)}).Draw(rt, "bits")
		hash := func(key string) uint64 { return hashOf(key) & bits }
		x, entries, want := newKeyMap(rapid.SampledFrom([]int{0, 5000}).Draw(rt, "expect")), &table{}, map[string]uint32{}
		for range rapid.IntRange(0, 400).Draw(rt, "steps") {
			key := fmt.Sprint(rapid.IntRange(0, 60).Draw(rt, "key"))
			if id, ok := want[key]; ok {
				x.remove(hash(key), id)
				entries.remove(id)
				delete(want, key)
			} else {
				id := entries.add(hash(key), key)
				x.add(hash(key), id)
				want[key] = id
			}
		}
		keys, hashes, ids := make([]string, 70), make([]uint64, 70), make([]uint32, 70)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
			hashes[i] = hash(keys[i])
		}
		x.findAll(entries, hashes, keys, ids)
		for i, key := range keys {
			id, ok := x.find(entries, hashes[i], key)
			if w, there := want[key]; ok != there || ok && id != w || ok != (ids[i] != none) || ok && ids[i] != w {
				rt.Fatalf("%q: %d %t, and %d in a batch; want %d %t", key, id, ok, ids[i], w, there)
			}
		}
		if x.len != len(want) {
			rt.Fatalf("%d keys, want %d", x.len, len(want))
		}
	})
}

// With a million keys, no shard is so large that growing it takes long, and none is too
// full.
func TestKeyMapGrowsInSmallSteps(t *testing.T) {
	x := newKeyMap(0)
	for id := range uint32(1 << 20) {
		x.add(hashOf(fmt.Sprint(id)), id)
	}
	for n := range x.shards {
		if sh := &x.shards[n]; len(sh.slots) > 1<<14 || 4*sh.used > 3*len(sh.slots) {
			t.Fatalf("shard %d: %d of %d slots", n, sh.used, len(sh.slots))
		}
	}
}
