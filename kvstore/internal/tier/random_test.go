package tier_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/tier"
)

// Saves, loads, deletes and flushes, of several callers at once, while calls of both stores fail. In the end, when
// Flush has succeeded, what is near is far, and what was deleted is nowhere.
func TestRandomFaults(t *testing.T) {
	const callers, keysOfEach, steps = 4, 3, 40
	first := seed.New(t)
	h := hostOn(t, t.TempDir(), "a", tier.Options{})
	// Two faults in different shards would have the near store get a block whole from two saves that fail.
	isFirst := func(_ kv.Key, index int) bool { return index == 0 }
	h.near.Set(
		fault.Fault{Method: fault.Load, Chance: 0.05, Seed: first, Err: syscall.EIO},
		fault.Fault{Method: fault.Lookup, Chance: 0.05, Seed: first, Err: syscall.EIO},
		fault.Fault{Method: fault.Save, Where: isFirst, Chance: 0.06, Seed: first, Err: syscall.ENOSPC},
		fault.Fault{Method: fault.Delete, Chance: 0.3, Seed: first, Err: syscall.EIO},
	)
	h.far.Set(
		fault.Fault{Method: fault.Load, Chance: 0.05, Seed: first, Err: syscall.EIO},
		fault.Fault{Method: fault.Lookup, Chance: 0.05, Seed: first, Err: syscall.EIO},
		fault.Fault{Method: fault.Save, Chance: 0.1, Seed: first, Err: syscall.ENOSPC},
		fault.Fault{Method: fault.Save, Chance: 0.005, Seed: first + 1, Err: syscall.ETIMEDOUT},
		fault.Fault{Method: fault.Delete, Chance: 0.2, Seed: first, Err: syscall.EIO},
	)
	deleted := make([]map[kv.Key]bool, callers) // surely
	var all sync.WaitGroup
	for caller := range callers {
		random := rand.New(rand.NewPCG(first, uint64(caller)))
		deleted[caller] = map[kv.Key]bool{}
		all.Go(func() {
			for range steps {
				k := key(caller*keysOfEach + random.IntN(keysOfEach))
				switch random.IntN(6) {
				case 0, 1:
					_ = h.trySave(k)
					deleted[caller][k] = false
				case 2: // in parts
					for _, s := range shards([]kv.Key{k}, true) {
						if task, err := h.Save(t.Context(), []kv.Shard{s}); err == nil {
							_ = task.Wait(t.Context())
						}
					}
					deleted[caller][k] = false
				case 3:
					deleted[caller][k] = h.Delete(t.Context(), []kv.Key{k}) == nil
				case 4:
					_ = h.tryLoad(h.Store, k) // it looks at the bytes
				case 5:
					if err := h.Flush(h.bounded()); err != nil && strings.Contains(err.Error(), "did not get") {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	h.near.Set()
	h.far.Set()
	h.eventually("Flush succeeds", func() bool { return h.Flush(h.bounded()) == nil })
	for caller := range callers {
		for n := range keysOfEach {
			k := key(caller*keysOfEach + n)
			near, far := h.has(h.near, k), h.has(h.far, k)
			switch {
			case deleted[caller][k] && near+far > 0:
				t.Errorf("block %s was deleted: near %d, far %d", k, near, far)
			case near > far:
				t.Errorf("block %s is near and not far", k)
			}
		}
	}
}
