// Package storesuite tests the contract of block stores. Every store, every decorator
// of one and package kvstore itself run it. Each sentence of the contract has a test of
// its own, named for what holds.
package storesuite

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Store is a kv.Store, or a kvstore.Store behind an adapter.
type Store interface {
	Layout() kv.Layout
	Lookup(ctx context.Context, keys []kv.Key, found []bool) error
	LookupPrefix(ctx context.Context, keys []kv.Key) (int, error)
	Prefetch(keys []kv.Key)
	Load(ctx context.Context, shards []kv.Shard) (Task, error)
	Save(ctx context.Context, shards []kv.Shard) (Task, error)
	Delete(ctx context.Context, keys []kv.Key) error
	Keys(ctx context.Context) iter.Seq2[kv.Key, error]
	Flush(ctx context.Context) error
	Stats() kv.Stats
	Close() error
}

// Task is a batch of a Store.
type Task interface {
	Len() int
	Shard(i int) kv.Shard
	Result(i int) (err error, settled bool)
	Done() <-chan struct{}
	Err() error
	Landed(layer int) <-chan struct{}
	LandedErr(layer int) error
	All() iter.Seq2[int, error]
	Cancel()
	Wait(ctx context.Context) error
}

// direct is a kv.Store as a Store.
type direct struct{ kv.Store }

func (d direct) Load(ctx context.Context, shards []kv.Shard) (Task, error) {
	return taskOf(d.Store.Load(ctx, shards))
}

func (d direct) Save(ctx context.Context, shards []kv.Shard) (Task, error) {
	return taskOf(d.Store.Save(ctx, shards))
}

// taskOf returns a nil Task where there is no task, and not an interface that holds nil.
func taskOf(t *kv.Task, err error) (Task, error) {
	if t == nil {
		return nil, err
	}
	return t, err
}

// Options are what the suite requires of a store that it opens.
type Options struct {
	Layout    kv.Layout
	Namespace kv.Fingerprint
	Blocks    int // the store must hold at least as many
}

// Subject is a store under test.
type Subject struct {
	// Open opens the store over dir, which is empty at first. When it is called again
	// with the same dir after Close, it opens what is there. On an error it ends the test.
	Open func(t testing.TB, dir string, o Options) kv.Store

	// OpenStore is Open for what is not a kv.Store. One of the two is given.
	OpenStore func(t testing.TB, dir string, o Options) Store

	// Dir makes the directories that Open gets; nil: in the test's own directory.
	Dir func(t testing.TB) string

	// Durable means that flushed blocks exist after Close and Open.
	Durable bool

	// Discards means that the store takes blocks and keeps none, as Empty does.
	Discards bool

	// Damage changes stored bytes below the dir of a closed store; seed decides which and
	// how. It is nil where nothing is on a disk. The store must still open. Verified
	// means that the store then never returns a wrong byte.
	Damage   func(t testing.TB, dir string, seed uint64)
	Verified bool

	// Seeds is how many times Damage is tried. Default 40, with -short 8.
	Seeds int

	// AlignBytes divides the sizes of all shards; 0 where any size will do.
	AlignBytes int64

	// OneNamespace means that Open refuses the dir of another namespace.
	OneNamespace bool

	// Versions means that loads say of which version their shards are, for Cache.
	Versions bool

	// Unverified means that the store does not know the namespace of every block, as in
	// UCM's layouts, so that Keys may yield blocks of another namespace.
	Unverified bool

	// Together means that blocks which were saved together may go together, when one of them is
	// deleted or found damaged: they share a file.
	Together bool

	// Brief leaves out the sentences that do not depend on where a shard's memory is.
	Brief bool

	// Patience is how long a call or a batch may take before it counts as hung. Default
	// 30 s.
	Patience time.Duration
}

// open opens the store.
func (s Subject) open(t testing.TB, dir string, o Options) Store {
	if s.OpenStore != nil {
		return s.OpenStore(t, dir, o)
	}
	return direct{s.Open(t, dir, o)}
}

// as returns the store as an interface that not every store implements.
func as[A any](s Store) (A, bool) {
	if d, ok := s.(direct); ok {
		a, ok := d.Store.(A)
		return a, ok
	}
	a, ok := s.(A)
	return a, ok
}

// Run runs the suite.
func Run(t *testing.T, s Subject) {
	if s.Patience == 0 {
		s.Patience = 30 * time.Second
	}
	if s.Seeds == 0 {
		s.Seeds = 40
		if testing.Short() {
			s.Seeds = 8
		}
	}
	s.AlignBytes = max(s.AlignBytes, 1)
	groups := []map[string]func(*world){moving, refusing, differing, closing}
	if !s.Brief {
		groups = append(groups, looking, assembling, owning, watching, cancelling, sharing, lasting, counting, damaging, deleting, listing)
	}
	for _, group := range groups {
		for name, test := range group {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, s)
				test(w)
				w.end()
			})
		}
	}
}
