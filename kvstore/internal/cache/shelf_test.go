package cache_test

import (
	"context"
	"iter"
	"sync"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// shelf is a next store in memory that counts calls, and that can be told to wait and to
// fail. Its content may be shared with another shelf.
type shelf struct {
	layout kv.Layout
	things *things
	quit   chan struct{}
	calls  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	loads   map[place]int // how often each shard was asked for
	saves   map[place]int
	lookups int // keys
	batches int // of loads
	atOnce  func(shard kv.Shard, save bool) error
}

type place struct {
	key   kv.Key
	index int
}

// things outlive a shelf.
type things struct {
	mu       sync.Mutex
	blocks   map[kv.Key]map[int][]byte
	versions map[kv.Key]uint64
	latest   uint64
}

func newThings() *things {
	return &things{blocks: map[kv.Key]map[int][]byte{}, versions: map[kv.Key]uint64{}}
}

func newShelf(l kv.Layout, t *things) *shelf {
	return &shelf{layout: l, things: t, quit: make(chan struct{}), loads: map[place]int{}, saves: map[place]int{}}
}

// before makes the shelf call fn for every shard before it is moved. An error of fn
// fails the shard.
func (s *shelf) before(fn func(shard kv.Shard, save bool) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atOnce = fn
}

func (s *shelf) asked(k kv.Key, index int) (loads, saves int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads[place{k, index}], s.saves[place{k, index}]
}

func (t *things) has(k kv.Key, l kv.Layout) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.blocks[k]) == l.Shards()
}

func (t *things) put(k kv.Key, index int, b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.blocks[k] == nil {
		t.blocks[k] = map[int][]byte{}
		t.latest++
		t.versions[k] = t.latest
	}
	if t.blocks[k][index] == nil {
		t.blocks[k][index] = append([]byte(nil), b...)
	}
}

func (t *things) remove(k kv.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.blocks, k)
}

func (s *shelf) Layout() kv.Layout { return s.layout }

func (s *shelf) Lookup(_ context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return kv.ErrClosed
	}
	s.lookups += len(keys)
	for i, k := range keys {
		found[i] = s.things.has(k, s.layout)
	}
	return nil
}

func (s *shelf) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	found := make([]bool, len(keys))
	if err := s.Lookup(ctx, keys, found); err != nil {
		return 0, err
	}
	for i, f := range found {
		if !f {
			return i, nil
		}
	}
	return len(keys), nil
}

func (s *shelf) Prefetch([]kv.Key) {}

func (s *shelf) Delete(_ context.Context, keys []kv.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return kv.ErrClosed
	}
	for _, k := range keys {
		s.things.remove(k)
	}
	return nil
}

func (s *shelf) Keys(context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		s.things.mu.Lock()
		var all []kv.Key
		for k, shards := range s.things.blocks {
			if len(shards) == s.layout.Shards() {
				all = append(all, k)
			}
		}
		s.things.mu.Unlock()
		for _, k := range all {
			if !yield(k, nil) {
				return
			}
		}
	}
}

func (s *shelf) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.begin(ctx, shards, false)
}

func (s *shelf) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.begin(ctx, shards, true)
}

func (s *shelf) begin(ctx context.Context, shards []kv.Shard, save bool) (*kv.Task, error) {
	if err := s.layout.CheckShards(shards); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, kv.ErrClosed
	}
	if !save {
		s.batches++
	}
	t := kv.NewTask(ctx, shards)
	s.calls.Go(func() {
		for i := range shards {
			version, err := s.one(t.Context(), shards[i], save)
			t.SetVersion(i, version)
			t.Settle(i, err)
		}
	})
	return t, nil
}

func (s *shelf) one(ctx context.Context, shard kv.Shard, save bool) (version uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	at, before := place{shard.Key, shard.Index}, s.atOnce
	if save {
		s.saves[at]++
	} else {
		s.loads[at]++
	}
	s.mu.Unlock()
	if before != nil {
		if err := before(shard, save); err != nil {
			return 0, err
		}
	}
	if save {
		return 0, shm.Guard(func() { s.things.put(shard.Key, shard.Index, shard.Buf) })
	}
	s.things.mu.Lock()
	defer s.things.mu.Unlock()
	if len(s.things.blocks[shard.Key]) < s.layout.Shards() {
		return 0, kv.ErrMiss
	}
	// Like a system call, it survives memory that is no longer there.
	return s.things.versions[shard.Key], shm.Guard(func() { copy(shard.Buf, s.things.blocks[shard.Key][shard.Index]) })
}

func (s *shelf) Flush(context.Context) error { return nil }

func (s *shelf) Stats() kv.Stats { return kv.Stats{Store: "Shelf"} }

func (s *shelf) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.calls.Wait()
	return nil
}
