package kvstore_test

import (
	"context"
	"fmt"
	"iter"
	"log"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// shelf is a backend that keeps objects in a map. A real one would call a service.
type shelf struct {
	mu      sync.Mutex
	objects map[string][]byte
}

func (s *shelf) Has(_ context.Context, names []string, found []bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, name := range names {
		_, found[i] = s.objects[name]
	}
	return nil
}

func (s *shelf) Get(_ context.Context, name string, off int64, buf []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	object, ok := s.objects[name]
	if !ok || off+int64(len(buf)) > int64(len(object)) {
		return kvstore.ErrMiss
	}
	copy(buf, object[off:])
	return nil
}

func (s *shelf) Put(_ context.Context, name string, object []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[name] = slices.Clone(object) // object is the chain's again when Put returns
	return nil
}

func (s *shelf) Delete(_ context.Context, names []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.objects, name)
	}
	return nil
}

func (s *shelf) List(_ context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s.mu.Lock()
		names := slices.Collect(maps.Keys(s.objects))
		s.mu.Unlock()
		for _, name := range names {
			if strings.HasPrefix(name, prefix) && !yield(name, nil) {
				return
			}
		}
	}
}

func (s *shelf) Close() error { return nil }

// A program registers a store of its own, and uses it in a chain behind the cache. UCM's
// PIPELINE_REGISTRY does this for its stores.
func ExampleRegistry() {
	objects := &shelf{objects: map[string][]byte{}}
	var registry kvstore.Registry
	err := registry.Register("Shelf", func(kvstore.Config) (kvstore.Backend, error) { return objects, nil })
	if err != nil {
		log.Fatal(err)
	}
	model := keys.Namespace{Model: "example/tiny", BlockTokens: 4}
	config := kvstore.Config{
		Namespace: model,
		Layout:    kvstore.Layout{BlockBytes: 64 << 10},
		Cache:     &kvstore.CacheOptions{CapacityBytes: 4 << 20},
	}
	chain, err := keys.NewChain(model)
	if err != nil {
		log.Fatal(err)
	}
	blocks := chain.Append([]uint32{1, 2, 3, 4, 5, 6, 7, 8})
	ctx := context.Background()

	for range 2 { // the second time as after a restart
		store, err := registry.Open("Cache|Shelf", config)
		if err != nil {
			log.Fatal(err)
		}
		hits, err := store.LookupPrefix(ctx, blocks)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d of %d blocks were stored\n", hits, len(blocks))
		memory := [][]byte{make([]byte, 64<<10), make([]byte, 64<<10)}
		save, err := store.Save(ctx, store.Layout().ByBlock(blocks, memory))
		if err != nil {
			log.Fatal(err)
		}
		if err := save.Wait(ctx); err != nil {
			log.Fatal(err)
		}
		if err := store.Close(); err != nil { // writes what was saved
			log.Fatal(err)
		}
	}
	fmt.Println(len(objects.objects), "objects")
	// Output:
	// 0 of 2 blocks were stored
	// 2 of 2 blocks were stored
	// 2 objects
}
