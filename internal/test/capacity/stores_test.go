package capacity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// blocks are the blocks of one store, which several programs write and read: each number is
// that of a block.
type blocks struct {
	*testing.T
	chain  string
	config kvstore.Config

	perItem uint64 // how many blocks are saved and loaded at once: a prompt

	last              atomic.Uint64 // number of the newest item
	saved, hits, miss atomic.Int64
}

// openFiles is how many files a store keeps open, which are not evicted meanwhile. Those that have no such
// option keep 64.
const openFiles = 4

var namespace = keys.Namespace{Model: "kv3fs/capacity", DType: "bfloat16", BlockTokens: 128, Layers: 2}

// layoutsOf are the layouts of engines, as their stores write them on a mount.
var layoutsOf = map[string]func(c *kvstore.Config, mount, dir string){
	"LMCache": func(c *kvstore.Config, _, dir string) {
		c.LMCache = &kvstore.LMCacheOptions{BasePaths: []string{dir}, OpenFiles: openFiles}
	},
	"LMCache without headers": func(c *kvstore.Config, _, dir string) {
		c.LMCache = &kvstore.LMCacheOptions{BasePaths: []string{dir}, NoChunkMeta: true, OpenFiles: openFiles}
	},
	"Gds": func(c *kvstore.Config, _, dir string) { c.Gds = &kvstore.GdsOptions{Dirs: []string{dir}} },
	"Ds3fs": func(c *kvstore.Config, mount, _ string) {
		c.Ds3fs = &kvstore.Ds3fsOptions{Mount: mount, OpenFiles: openFiles}
	},
	"Posix":       func(c *kvstore.Config, _, dir string) { c.Posix = &kvstore.PosixOptions{Dirs: []string{dir}} },
	"RtpLlm":      func(c *kvstore.Config, _, dir string) { rtpllm(c, dir, 1) },
	severalBlocks: func(c *kvstore.Config, _, dir string) { rtpllm(c, dir, 4) },
}

const severalBlocks = "RtpLlm with several blocks in a file"

func rtpllm(c *kvstore.Config, dir string, itemBlocks int) {
	c.RtpLlm = &kvstore.RtpLlmOptions{Root: dir, Biz: "capacity", Checkpoint: "/models/capacity", ItemBlocks: itemBlocks, EngineFileOptions: kvstore.EngineFileOptions{OpenFiles: openFiles}}
}

func (b *blocks) key(n uint64) kvstore.Key {
	switch b.chain {
	case "Ds3fs", "Posix":
		return namespace.Key(strconv.AppendUint(nil, n, 10))
	}
	return keys.Int64Key(int64(n * 0x9e3779b97f4a7c15))
}

// open opens the store as one more program does.
func (b *blocks) open() *kvstore.Store {
	s, err := kvstore.Open(b.chain, b.config)
	if err != nil {
		b.Error(err)
		return nil
	}
	return s
}

// keys are those of the blocks of a prompt.
func (b *blocks) keys(n uint64) (all []kvstore.Key) {
	for i := range b.perItem {
		all = append(all, b.key(n*b.perItem+i))
	}
	return all
}

func (b *blocks) shards(n uint64) []kvstore.Shard {
	l := b.config.Layout
	var memory [][]byte
	for range b.perItem {
		memory = append(memory, make([]byte, l.BlockBytes))
	}
	return l.ByBlock(b.keys(n), memory)
}

func (b *blocks) save(ctx context.Context) {
	s := b.open()
	if s == nil {
		return
	}
	defer s.Close()
	for ctx.Err() == nil {
		n := b.last.Add(1)
		batch := b.shards(n)
		for i, shard := range batch {
			workload.PatternOf(n, uint64(i)).Fill(shard.Buf)
		}
		task, err := s.Save(context.Background(), batch)
		if err == nil {
			err = task.Wait(context.Background())
		}
		if err != nil {
			b.Errorf("save prompt %d: %v", n, err)
			return
		}
		b.saved.Add(int64(b.perItem))
	}
}

func (b *blocks) load(ctx context.Context) {
	s := b.open()
	if s == nil {
		return
	}
	defer s.Close()
	for ctx.Err() == nil {
		n := max(1, b.last.Load()-rand.Uint64N(min(b.last.Load()+1, 300/b.perItem)))
		batch := b.shards(n)
		for i, shard := range batch {
			workload.PatternOf(n, uint64(i)).Spoil(shard.Buf)
		}
		if _, err := s.LookupPrefix(context.Background(), b.keys(n)); err != nil { // that finds an item of several blocks
			b.Errorf("look prompt %d up: %v", n, err)
			return
		}
		task, err := s.Load(context.Background(), batch)
		if err != nil {
			b.Errorf("load prompt %d: %v", n, err)
			return
		}
		_ = task.Wait(context.Background())
		for i, shard := range batch {
			err, settled := task.Result(i)
			switch {
			case err == nil && settled:
				if wrong, first := workload.PatternOf(n, uint64(i)).Check(shard.Buf); wrong > 0 {
					b.Errorf("prompt %d, shard %d is loaded, and %d bytes are wrong, the first at %d", n, shard.Index, wrong, first)
					return
				}
				b.hits.Add(1)
			case errors.Is(err, kvstore.ErrMiss):
				b.miss.Add(1)
			default:
				b.Errorf("load prompt %d, shard %d: %v, settled: %v", n, shard.Index, err, settled)
				return
			}
		}
	}
}

// The capacity holds while engines save twice as much in their own layouts, and each
// block that a reader gets is whole and right.
func TestStoresAreEvicted(t *testing.T) {
	limit := limitBytes() / 2
	for name, where := range layoutsOf {
		t.Run(name, func(t *testing.T) {
			disk := ownDisk(t, 2*limit+(64<<20))
			d := daemontest.ServeWith(t, daemontest.Options{
				Data:  disk,
				Flags: []string{"--capacity", strconv.FormatInt(limit, 10), "--eviction-grace", "1s", "--deadline", "1m", "--pages-listen", "off"},
			})
			own := takenBytes(t, disk)
			b := &blocks{T: t, chain: strings.Fields(name)[0], perItem: 1}
			if name == severalBlocks {
				b.perItem = 4
			}
			b.config = kvstore.Config{Namespace: namespace, Layout: kvstore.Layout{BlockBytes: 128 << 10, ShardBytes: 64 << 10}, Timeout: 5 * time.Minute}
			dir := filepath.Join(d.Mount, "cache")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			where(&b.config, d.Mount, dir)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() { b.save(ctx) })
			}
			for range 2 {
				all.Go(func() { b.load(ctx) })
			}
			most := int64(0)
			want := 2 * limit / b.config.Layout.BlockBytes
			for end := time.Now().Add(5 * time.Minute); (b.saved.Load() < want || b.hits.Load() == 0) && !t.Failed(); time.Sleep(time.Millisecond) {
				most = max(most, takenBytes(t, disk)-own)
				if time.Now().After(end) {
					t.Errorf("after five minutes, only %d blocks were saved of %d, and %d loaded", b.saved.Load(), want, b.hits.Load())
				}
			}
			stop()
			all.Wait()
			if most > limit {
				t.Errorf("%d bytes were taken at one moment, %d more than the capacity", most, most-limit)
			}
			t.Logf("%d blocks saved, %d shards loaded, %d missed; at most %d of %d bytes taken", b.saved.Load(), b.hits.Load(), b.miss.Load(), most, limit)
			if several := b.severalInOne(disk); name == severalBlocks && (several == 0 || several*int(b.perItem) > int(b.saved.Load())/2) {
				t.Errorf("%d blocks were saved, of a capacity of %d, and there are %d files of several blocks", b.saved.Load(), limit/b.config.Layout.BlockBytes, several)
			}
			alone := b.sidesAlone(disk)
			for end := time.Now().Add(time.Minute); len(alone) > 0 && !t.Failed() && !time.Now().After(end); time.Sleep(10 * time.Millisecond) {
				alone = b.sidesAlone(disk) // the last removal has not ended
			}
			if len(alone) > 0 {
				t.Errorf("the data is gone that these files say is there: %q", alone)
			}
			if t.Failed() {
				t.Log(d.Log())
			}
		})
	}
}

// severalInOne returns how many files there are of several blocks, each as long as all of them.
func (b *blocks) severalInOne(data string) (n int) {
	b.Helper()
	err := filepath.WalkDir(data, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(data, path)
		if err != nil || classify.Classify(rel, classify.Context{}).Blocks < 2 {
			return err
		}
		n++
		info, err := e.Info()
		if err == nil && info.Size() != int64(b.perItem)*b.config.Layout.BlockBytes {
			b.Errorf("%s has %d bytes", rel, info.Size())
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) { // one goes meanwhile
		b.Fatal(err)
	}
	return n
}

// sidesAlone returns the files that say that data is there which is not. Data may be there of which nothing says so: the
// file that does goes first, and a reader who has just read that one opens the data meanwhile, so that it stays until it is
// its turn again.
func (b *blocks) sidesAlone(data string) (alone []string) {
	err := filepath.WalkDir(data, func(path string, e os.DirEntry, err error) error {
		if err != nil && !errors.Is(err, os.ErrNotExist) || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(data, path)
		if err != nil {
			return err
		}
		f := classify.Classify(rel, classify.Context{})
		if f.Temp || f.Part != classify.Side {
			return nil
		}
		for _, part := range f.Parts() {
			if !exists(filepath.Join(data, part)) {
				alone = append(alone, rel)
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(fmt.Errorf("walk: %w", err))
	}
	return alone
}
