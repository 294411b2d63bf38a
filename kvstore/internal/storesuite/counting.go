package storesuite

import (
	"encoding/json"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var counting = map[string]func(*world){
	"Stats names the store": func(w *world) {
		s := w.store.Stats()
		if s.Store == "" {
			w.Fatal("the name is empty")
		}
		if _, err := json.Marshal(s); err != nil {
			w.Fatal(err)
		}
	},

	"Stats count what happened": func(w *world) {
		before := w.store.Stats()
		w.save(keys(0, 4)...)
		w.lookup(append(keys(0, 4), keys(50, 3)...)...)
		w.wait(w.beginLoad(w.shards(key(0), key(1), key(50))))
		s := w.store.Stats()
		shards, size := int64(w.o.Layout.Shards()), w.o.Layout.ShardBytes
		kept := int64(1)
		if w.subject.Discards {
			kept = 0
		}
		for _, c := range []struct {
			name      string
			got, want int64
		}{
			{"looked up", s.LookedUp - before.LookedUp, 7},
			{"found", s.Found - before.Found, 4 * kept},
			{"shards saved", s.SavedShards - before.SavedShards, 4 * shards},
			{"bytes saved", s.SavedBytes - before.SavedBytes, 4 * shards * size},
			{"shards loaded", s.LoadedShards - before.LoadedShards, 2 * shards * kept},
			{"bytes loaded", s.LoadedBytes - before.LoadedBytes, 2 * shards * size * kept},
			{"shards missed", s.MissedShards - before.MissedShards, 3*shards - 2*shards*kept},
			{"loads failed", s.FailedLoads - before.FailedLoads, 0},
			{"saves failed", s.FailedSaves - before.FailedSaves, 0},
			{"corrupt", s.CorruptBlocks - before.CorruptBlocks, 0},
		} {
			if c.got != c.want {
				w.Errorf("%s: %d, want %d", c.name, c.got, c.want)
			}
		}
		if s.Blocks >= 0 && s.Blocks != 4*kept {
			w.Errorf("%d blocks are held, 4 were saved", s.Blocks)
		}
		if s.CapacityBytes < 0 || s.CapacityBytes > 0 && s.CapacityBytes < int64(w.o.Blocks)*w.o.Layout.BlockBytes {
			w.Errorf("a capacity of %d bytes is too small for %d blocks", s.CapacityBytes, w.o.Blocks)
		}
	},

	"Stats do not count a miss as a failure": func(w *world) {
		w.wait(w.beginLoad(w.shards(key(0))))
		s := w.store.Stats()
		if s.FailedLoads != 0 || s.MissedShards != int64(w.o.Layout.Shards()) {
			w.Fatalf("%d failed, %d missed", s.FailedLoads, s.MissedShards)
		}
	},
}

// corrupt returns how many damaged blocks a chain has found.
func corrupt(s kv.Stats) int64 {
	n := s.CorruptBlocks
	if s.Next != nil {
		n += corrupt(*s.Next)
	}
	return n
}
