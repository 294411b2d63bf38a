package enginebench

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore"
)

// idle is a store that has every block that was saved, and whose loads succeed without touching
// memory, except those of a block's record.
type idle struct {
	mu      sync.Mutex
	objects map[string][]byte
	loads   int
}

func (s *idle) Has(_ context.Context, names []string, found []bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, name := range names {
		_, found[i] = s.objects[name]
	}
	return nil
}

func (s *idle) Get(_ context.Context, name string, off int64, buf []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	object, ok := s.objects[name]
	switch {
	case !ok:
		return kvstore.ErrMiss
	case off == 0:
		copy(buf, object)
	default:
		s.loads++
	}
	return nil
}

func (s *idle) Put(_ context.Context, name string, object []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[name] = slices.Clone(object)
	return nil
}

func (s *idle) Delete(context.Context, []string) error { return nil }

func (s *idle) List(context.Context, string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for name := range maps.Keys(s.objects) {
			if !yield(name, nil) {
				return
			}
		}
	}
}

func (s *idle) Close() error { return nil }

// A store whose loads leave memory as it was does not pass for one that loads, though the memory
// may be that which the block was saved from: each workload ends with an error, with checksums
// and without.
func TestLoadsThatDoNothing(t *testing.T) {
	for name, change := range map[string]func(*Options){
		RandomTwice: func(o *Options) { o.Prompts, o.PromptTokens = 1, []int{1280} },
		UCMTable:    func(o *Options) { o.PromptTokens, o.Concurrency, o.Runs = []int{2000}, []int{1}, 1 },
		SharedPrefix: func(o *Options) {
			o.Groups, o.Queries, o.PromptTokens, o.Concurrency, o.EngineMemory, o.NoCold = 1, 3, []int{1000}, []int{1}, NoEngineMemory, true
		},
	} {
		for _, checksums := range []kvstore.Checksums{kvstore.ChecksumsOff, kvstore.ChecksumsAuto} {
			t.Run(name+" "+string(checksums), func(t *testing.T) {
				s := &idle{objects: map[string][]byte{}}
				var registry kvstore.Registry
				if err := registry.Register("Idle", func(kvstore.Config) (kvstore.Backend, error) { return s, nil }); err != nil {
					t.Fatal(err)
				}
				o := quick(name, newShelf(t))
				o.Store, o.Open = "Idle", func(_ context.Context, w Want) (*kvstore.Store, error) {
					return registry.Open("Idle", kvstore.Config{Namespace: w.Namespace, Layout: w.Layout, Speed: w.Speed, Checksums: checksums})
				}
				change(&o)
				_, err := Run(t.Context(), o)
				var wrong *WrongBytesError
				var lost *LossError
				if s.loads == 0 || !errors.As(err, &wrong) && !errors.As(err, &lost) {
					t.Errorf("after %d loads that did nothing: %v", s.loads, err)
				}
			})
		}
	}
}
