package storetest_test

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/storetest"
)

// shelf is a backend that keeps objects in a map.
type shelf struct {
	mu      sync.Mutex
	objects map[string][]byte
}

func (s *shelf) Has(_ context.Context, names []string, found []bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, name := range names {
		found[i] = s.objects[name] != nil
	}
	return nil
}

func (s *shelf) Get(_ context.Context, name string, off int64, buf []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[name]
	if off+int64(len(buf)) > int64(len(object)) {
		return kvstore.ErrMiss
	}
	copy(buf, object[off:])
	return nil
}

func (s *shelf) Put(_ context.Context, name string, object []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[name] = slices.Clone(object)
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

// The contract holds for chains with a store of a program's own.
func TestRegisteredChains(t *testing.T) {
	var mu sync.Mutex
	shelves := map[string]*shelf{} // by directory
	register := func(r *kvstore.Registry, dir string) error {
		return r.Register("Shelf", func(kvstore.Config) (kvstore.Backend, error) {
			mu.Lock()
			defer mu.Unlock()
			if shelves[dir] == nil {
				shelves[dir] = &shelf{objects: map[string][]byte{}}
			}
			return shelves[dir], nil
		})
	}
	storetest.Run(t, "Cache|Shelf", storetest.Options{Register: register})
}
