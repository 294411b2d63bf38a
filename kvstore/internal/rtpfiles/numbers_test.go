package rtpfiles

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// The keys of both engines are numbers, in whose files several blocks may be. The suite's keys
// are digests, so each has a number here.
func TestSuiteOfNumbers(t *testing.T) { suiteOfNumbers(t, 1) }

// The contract holds for blocks in items of several.
func TestSuiteOfItems(t *testing.T) { suiteOfNumbers(t, 4) }

func suiteOfNumbers(t *testing.T, packBlocks int) {
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			all := &names{of: map[kv.Key]kv.Key{}}
			storesuite.Run(t, storesuite.Subject{
				OpenStore: func(t testing.TB, dir string, so storesuite.Options) storesuite.Store {
					s, err := open(Options{Root: dir, Layout: so.Layout, Namespace: so.Namespace, Transfers: 4, Accepted: 1024, PackBlocks: packBlocks})
					if err != nil {
						t.Fatal(err)
					}
					return &numbered{Store: s, names: all}
				},
				Durable:  true,
				Damage:   damageOfNumbers,
				Verified: true,
				Together: packBlocks > 1,
				Patience: 5 * time.Minute, // the machine may be busy
			})
		})
	}
}

// numbered is a store whose keys are numbers, one for each key of the suite's.
type numbered struct {
	*Store
	*names
}

// names are the suite's keys by their numbers.
type names struct {
	mu sync.Mutex
	of map[kv.Key]kv.Key
}

func (n *names) number(key kv.Key) kv.Key {
	number := keys.Int64Key(int64(xxh3.Hash(key[:])))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.of[number] = key
	return number
}

func (n *names) numbers(all []kv.Key) []kv.Key {
	to := make([]kv.Key, len(all))
	for i, key := range all {
		to[i] = n.number(key)
	}
	return to
}

func (n *names) shards(all []kv.Shard) []kv.Shard {
	to := make([]kv.Shard, len(all))
	for i, shard := range all {
		to[i] = shard
		to[i].Key = n.number(shard.Key)
	}
	return to
}

func (n *names) name(number kv.Key) kv.Key {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of[number]
}

func (n *numbered) Lookup(ctx context.Context, all []kv.Key, found []bool) error {
	return n.Store.Lookup(ctx, n.numbers(all), found)
}

func (n *numbered) LookupPrefix(ctx context.Context, all []kv.Key) (int, error) {
	return n.Store.LookupPrefix(ctx, n.numbers(all))
}

func (n *numbered) Prefetch(all []kv.Key) { n.Store.Prefetch(n.numbers(all)) }

func (n *numbered) Delete(ctx context.Context, all []kv.Key) error {
	return n.Store.Delete(ctx, n.numbers(all))
}

func (n *numbered) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		for number, err := range n.Store.Keys(ctx) {
			if !yield(n.name(number), err) {
				return
			}
		}
	}
}

func (n *numbered) Load(ctx context.Context, all []kv.Shard) (storesuite.Task, error) {
	return n.task(n.Store.Load(ctx, n.shards(all)))
}

func (n *numbered) Save(ctx context.Context, all []kv.Shard) (storesuite.Task, error) {
	return n.task(n.Store.Save(ctx, n.shards(all)))
}

func (n *numbered) task(t *kv.Task, err error) (storesuite.Task, error) {
	if t == nil {
		return nil, n.renamed(err)
	}
	return numberedTask{t, n.names}, n.renamed(err)
}

// renamed is an error with the suite's key.
func (n *names) renamed(err error) error {
	var mistake *kv.BatchError
	if !errors.As(err, &mistake) || mistake.Shard < 0 {
		return err
	}
	named := *mistake
	named.Key = n.name(mistake.Key)
	return &named
}

// damageOfNumbers damages files of blocks, whatever they are called.
func damageOfNumbers(t testing.TB, dir string, seed uint64) {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err == nil && d.IsDir() && path != dir && d.Name()[0] == '.':
			return fs.SkipDir
		case err == nil && d.Type().IsRegular() && d.Name()[0] != '.':
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatal(len(files), err)
	}
	rng := rand.New(rand.NewPCG(seed, 5))
	for range 1 + rng.IntN(3) {
		ucmtest.DamageOne(t, files[rng.IntN(len(files))], files[rng.IntN(len(files))], seed)
	}
}

// numberedTask is a task with the suite's keys.
type numberedTask struct {
	*kv.Task
	names *names
}

func (t numberedTask) Shard(i int) kv.Shard {
	s := t.Task.Shard(i)
	s.Key = t.names.name(s.Key)
	return s
}
