package cache

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Others get the lock while very many keys are looked up.
func TestALongLookupLetsOthersIn(t *testing.T) {
	s, err := New(empty.New(kv.Layout{BlockBytes: 4, ShardBytes: 4}), Options{CapacityBytes: 8 * 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	task, err := s.Save(t.Context(), []kv.Shard{{Buf: make([]byte, 4)}})
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	const keys = 1 << 20
	for range 50 {
		found, done := make([]bool, keys), make(chan struct{})
		go func() {
			defer close(done)
			s.inMemory(make([]kv.Key, keys), found)
		}()
		seen := 0
		for seen < keys {
			s.mu.Lock() // under which alone found is written
			before := seen
			for seen < keys && found[seen] {
				seen++
			}
			s.mu.Unlock()
			if before < seen && seen < keys {
				if seen%planAtOnce != 0 {
					t.Errorf("the lock was released after %d keys", seen)
				}
				<-done
				return
			}
		}
		<-done
	}
	t.Errorf("nobody got the lock before all of %d keys were looked up", keys)
}
