package blocksoak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// opening is the name and configuration of a chain, which this process opens, or one
// that will be killed.
type opening struct {
	Chain  string
	Config kvstore.UCMConfig
}

func (o opening) open() (*kvstore.Store, error) {
	c, err := o.Config.Config(o.Chain)
	if err != nil {
		return nil, err
	}
	return kvstore.Open(o.Chain, c)
}

var namespace = keys.Namespace{Model: "kv3fs/soak", BlockTokens: 128, Layers: 4}

// openings returns the chains of this first store, or of none, and each store, with their
// data below dir, those that have a capacity with this one.
func openings(front, dir string, d *daemon, layout kvstore.Layout, capacityBytes int64) map[string]opening {
	base := kvstore.UCMConfig{
		Namespace: namespace, BlockSize: layout.BlockBytes, ShardSize: layout.ShardBytes,
		TimeoutMs: 20_000,
	}
	if front != "" {
		base.CacheBufferBytes = 64 * layout.BlockBytes
	}
	all := map[string]opening{}
	add := func(store string, change func(c *kvstore.UCMConfig)) {
		c := base
		change(&c)
		all[front+store] = opening{front + store, c}
	}
	add("Posix", func(c *kvstore.UCMConfig) { c.StorageBackends = filepath.Join(dir, "posix") })
	add("Segment", func(c *kvstore.UCMConfig) {
		c.StorageBackends = filepath.Join(dir, "segment")
		c.SegmentCapacityBytes, c.SegmentBytes = capacityBytes, capacityBytes/16
	})
	add("Ds3fs", func(c *kvstore.UCMConfig) { c.StorageBackends = d.mount })
	add("Pages", func(c *kvstore.UCMConfig) {
		c.PagesURL, c.PagesFile, c.PagesCapacityBytes = "http://"+d.pages, filepath.Join(dir, "pages"), 3*capacityBytes // pages are quarantined before they are used again
		c.PagesLeaseMs, c.PagesQuarantineMs = leaseMs, quarantineMs
	})
	return all
}

// key returns the key of the n-th block.
func key(n int) kvstore.Key {
	return namespace.Key(fmt.Appendf(nil, "block %d", n))
}

func pattern(n, shard int) workload.Pattern { return workload.PatternOf(uint64(n), uint64(shard)) }

// shards returns the shards of the n-th block with fresh buffers.
func shards(l kvstore.Layout, n int) []kvstore.Shard {
	return l.ByBlock([]kvstore.Key{key(n)}, [][]byte{make([]byte, l.BlockBytes)})
}

// save saves blocks and waits until the first store has them.
func save(ctx context.Context, s *kvstore.Store, numbers ...int) error {
	var batch []kvstore.Shard
	for _, n := range numbers {
		one := shards(s.Layout(), n)
		for _, shard := range one {
			pattern(n, shard.Index).Fill(shard.Buf)
		}
		batch = append(batch, one...)
	}
	task, err := s.Save(ctx, batch)
	if err != nil {
		return err
	}
	return task.Wait(ctx)
}

// verdict is what loading a block showed.
type verdict int

const (
	right verdict = iota
	missing
	wrong
)

// load loads a block and checks each byte. The block is missed if any shard is, and
// wrong if any other shard has a wrong byte.
func load(ctx context.Context, s *kvstore.Store, n int) (verdict, error) {
	batch := shards(s.Layout(), n)
	task, err := s.Load(ctx, batch)
	if err != nil {
		return missing, err
	}
	v := right
	for i, err := range task.All() {
		switch {
		case errors.Is(err, kvstore.ErrMiss):
			v = max(v, missing)
		case err != nil:
			return missing, err
		default:
			if bytes, _ := pattern(n, batch[i].Index).Check(batch[i].Buf); bytes > 0 {
				v = wrong
			}
		}
	}
	return v, nil
}

// TestMain makes this binary the process that is killed, or one of the stress.
func TestMain(m *testing.M) {
	if arg := os.Getenv("KV3FS_BLOCKSOAK_WRITER"); arg != "" {
		if err := writer(arg); err != nil {
			fmt.Fprintln(os.Stderr, "writer:", err)
			os.Exit(1)
		}
		return
	}
	if arg := os.Getenv(damageEnv); arg != "" {
		if err := stress(arg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(daemontest.Main(m))
}

// order is what a writer is to do.
type order struct {
	Opening opening
	First   int
}

// writer saves blocks forever, in batches of several, some of them by layer, and prints
// which have been flushed, one line for each batch.
func writer(arg string) error {
	var o order
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		return err
	}
	s, err := o.Opening.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // in case its parent dies
	defer cancel()
	fmt.Println("open")
	const batch = 5
	for n := o.First; ; n += batch {
		if err := save(ctx, s, n, n+1, n+2, n+3, n+4); err != nil {
			return err
		}
		if err := s.Flush(ctx); err != nil {
			return err
		}
		fmt.Println(n + batch)
	}
}
