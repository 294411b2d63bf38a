package segment

import (
	"context"
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// After any calls in any order the store has what a map of the blocks would have, except
// that the oldest are evicted when the space is used up.
func TestModel(t *testing.T) {
	const segments, slots = 8, 5
	rapid.Check(t, func(rt *rapid.T) {
		o := options(t.TempDir(), small, segments, slots)
		o.Timeout = 6 * time.Second // unfinished blocks have to go soon
		s := open(t, o)
		defer func() { s.Close() }()
		wholeAt := map[kv.Key]int{} // when a block was saved in one batch, at the latest
		ever := map[kv.Key]int{}    // a bit for each shard of it that was saved
		started, ruined := 0, map[kv.Key]bool{}
		pick := rapid.Custom(func(rt *rapid.T) kv.Key { return keyOf(rapid.IntRange(0, 60).Draw(rt, "key")) })

		// recent says whether a block must be there: the newer half of the full segments
		// is safe, and carried copies take at most a slot of each.
		recent := func(key kv.Key) bool {
			at, ok := wholeAt[key]
			return ok && started-at <= 2*slots && !ruined[key]
		}
		saveSome := func(rt *rapid.T, shards []kv.Shard) {
			if err := beginSave(t, s, shards).Wait(context.Background()); err != nil {
				rt.Fatal(err)
			}
			for _, sh := range shards {
				ever[sh.Key] |= 1 << sh.Index
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"save": func(rt *rapid.T) {
				keys := rapid.SliceOfN(pick, 1, 4).Draw(rt, "keys")
				there := found(t, s, keys...)
				saveSome(rt, shardsOf(small, keys...))
				for i, key := range keys {
					if !there[i] { // else it stays where it was
						started++
						wholeAt[key] = started
						delete(ruined, key)
					}
				}
			},
			"save a shard": func(rt *rapid.T) {
				i := rapid.IntRange(0, small.Shards()-1).Draw(rt, "index")
				saveSome(rt, shardsOf(small, pick.Draw(rt, "key"))[i:i+1])
				started++
			},
			"load": func(rt *rapid.T) {
				keys := rapid.SliceOfN(pick, 1, 5).Draw(rt, "keys")
				for i, there := range load(t, s, keys...) {
					if !there && recent(keys[i]) {
						rt.Fatalf("block %s is gone", keys[i])
					}
					if there && ever[keys[i]] != 1<<small.Shards()-1 {
						rt.Fatalf("block %s was never whole", keys[i])
					}
				}
			},
			"delete": func(rt *rapid.T) {
				keys := rapid.SliceOfN(pick, 1, 5).Draw(rt, "keys")
				remove(t, s, keys...)
				for i, f := range found(t, s, keys...) {
					if f {
						rt.Fatalf("block %s is found, and was deleted", keys[i])
					}
					// Its shards may be unfinished, and then still become a block.
					delete(wholeAt, keys[i])
					if s.unfinished.Len() == 0 {
						delete(ever, keys[i])
					}
				}
			},
			"list": func(rt *rapid.T) {
				all := listed(t, s)
				for n := range 61 {
					if key := keyOf(n); all[key] != found(t, s, key)[0] {
						rt.Fatalf("block %s is listed: %t", key, all[key])
					}
				}
			},
			"reopen": func(*rapid.T) {
				s.Close()
				s = open(t, o)
			},
			"crash": func(*rapid.T) {
				o.Dir = snapshot(t, o.Dir)
				s.Close()
				s = open(t, o)
			},
			"ruin": func(rt *rapid.T) {
				key := pick.Draw(rt, "key")
				if !recent(key) {
					rt.Skip("it may not be there")
				}
				ruin(t, s, key)
				ruined[key] = true
				task, err := s.Load(context.Background(), shardsOf(small, key))
				if err != nil {
					rt.Fatal(err)
				}
				if err := task.Wait(context.Background()); !errors.Is(err, kv.ErrCorrupt) {
					rt.Fatalf("damage is %v", err)
				}
			},
			"": func(rt *rapid.T) {
				if size := onDisk(t, o.Dir); size > o.CapacityBytes {
					rt.Fatalf("%d bytes on the disk, of a capacity of %d", size, o.CapacityBytes)
				}
				if n := s.Stats().Blocks; n > segments*slots {
					rt.Fatalf("%d blocks", n)
				}
			},
		})
	})
}

// The table behaves as a map.
func TestTable(t *testing.T) {
	const slots = 64
	rapid.Check(t, func(rt *rapid.T) {
		table, model := newTable(slots), map[kv.Key]uint32{}
		used := map[uint32]bool{}
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				at := rapid.Uint32Range(0, slots-1).Draw(rt, "slot")
				if used[at] {
					rt.Skip("taken")
				}
				key := keyOf(rapid.IntRange(0, 80).Draw(rt, "key"))
				if was, ok := model[key]; ok {
					delete(used, was)
				}
				table.put(key, at)
				model[key], used[at] = at, true
			},
			"remove": func(rt *rapid.T) {
				at := rapid.Uint32Range(0, slots-1).Draw(rt, "slot")
				key := table.slots[at].key
				if table.remove(at) != used[at] {
					rt.Fatalf("slot %d is used: %t", at, used[at])
				}
				if used[at] {
					delete(used, at)
					delete(model, key)
				}
			},
			"": func(rt *rapid.T) {
				if table.count != len(model) {
					rt.Fatalf("%d entries of %d", table.count, len(model))
				}
				for i := range 81 {
					at, ok := table.find(keyOf(i))
					if want, there := model[keyOf(i)]; ok != there || ok && at != want {
						rt.Fatalf("key %d: %d, %t", i, at, ok)
					}
				}
				for at := range uint32(slots) {
					if table.has(at) != used[at] {
						rt.Fatalf("slot %d is used: %t", at, used[at])
					}
				}
			},
		})
	})
}
