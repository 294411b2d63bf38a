package blocksoak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// stores are those that a chain can end with.
var stores = []string{"Posix", "Ds3fs", "Segment", "Pages", "LMCache", "Gds", "RtpLlm", "Kvcm"}

// opening is the name and configuration of a chain, which this process opens, or another one
// that gets it as JSON.
type opening struct {
	Chain  string
	Config kvstore.Config
}

// chain is an open one.
type chain struct {
	*kvstore.Store
	opening
}

func (o opening) open() (chain, error) {
	s, err := kvstore.Open(o.Chain, o.Config)
	return chain{s, o}, err
}

// last returns the name of the chain's last store.
func (o opening) last() string { return o.Chain[strings.LastIndex(o.Chain, "|")+1:] }

// onMount reports whether a chain is to use the daemon's mount, and rings. Those that need
// none do so with a Cache, and use a directory without.
func (o opening) onMount() bool {
	switch store := o.last(); store {
	case "LMCache", "RtpLlm", "Kvcm":
		return o.Chain != store
	default:
		return store == "Ds3fs"
	}
}

// openingOf returns a chain that ends with a store, and where its files are, seen past the
// mount. The directories are made. A store with a capacity has this one.
func openingOf(t *testing.T, name string, d *daemon, layout kvstore.Layout, capacityBytes int64) (o opening, root string) {
	t.Helper()
	o = opening{Chain: name, Config: kvstore.Config{Namespace: namespace, Layout: layout, Timeout: patience}}
	store := o.last()
	dir := daemontest.NewDir(t)
	root = dir
	if o.onMount() {
		d.empty(t)
		dir, root = d.mount, d.data
	}
	below := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c := &o.Config
	switch store {
	case "Posix":
		c.Posix = &kvstore.PosixOptions{Dirs: []string{below("posix")}}
	case "Ds3fs":
		c.Ds3fs = &kvstore.Ds3fsOptions{Mount: dir}
	case "Segment":
		c.Segment = &kvstore.SegmentOptions{Dir: below("segment"), CapacityBytes: capacityBytes, SegmentBytes: capacityBytes / 16}
	case "Pages":
		c.Timeout = pagesPatience
		c.Pages = &kvstore.PagesOptions{
			URL: "http://" + d.pages, File: filepath.Join(dir, "pages"),
			CapacityBytes: 3 * capacityBytes, // pages are quarantined before they are used again
			Lease:         lease, Quarantine: quarantine,
		}
	case "LMCache":
		// Through rings, with a header; past them as with save_chunk_meta: false, where nothing but the
		// checksum log tells a damaged chunk.
		c.LMCache = &kvstore.LMCacheOptions{BasePaths: []string{below("lmcache-0"), below("lmcache-1")}, NoChunkMeta: !o.onMount()}
	case "Gds":
		c.Gds = &kvstore.GdsOptions{Dirs: []string{below("gds")}}
	case "RtpLlm":
		c.RtpLlm = &kvstore.RtpLlmOptions{Root: below("rtp_llm"), Biz: "soak", Checkpoint: "/models/soak", ItemBlocks: 1}
	case "Kvcm":
		c.Kvcm = &kvstore.KvcmOptions{Root: below("kv_manager"), Instance: "soak", Spec: "tp0_F0"}
	default:
		t.Fatalf("no store is called %s", store)
	}
	if strings.Contains(o.Chain, "Segment|") { // in front of the others, on the host's own disk
		c.Segment = &kvstore.SegmentOptions{Dir: daemontest.NewDir(t), CapacityBytes: capacityBytes, SegmentBytes: capacityBytes / 16}
	}
	if strings.HasPrefix(o.Chain, "Cache|") {
		c.Cache = &kvstore.CacheOptions{CapacityBytes: 64 * layout.BlockBytes}
	}
	return o, root
}

// far returns the last store of a chain alone, as another host sees it that has nothing of its
// own.
func (o opening) far() opening {
	o.Chain, o.Config.Cache, o.Config.Segment = o.last(), nil, nil
	return o
}

var namespace = keys.Namespace{Model: "kv3fs/soak", DType: "bfloat16", BlockTokens: 128, Layers: 4}

// key returns the key of the n-th block. Those of stores whose files other engines name by
// numbers are such numbers, half of them negative.
func (o opening) key(n int) kvstore.Key {
	switch o.last() {
	case "LMCache", "Gds", "RtpLlm", "Kvcm":
		return keys.Int64Key(int64(uint64(n+1) * 0x9e3779b97f4a7c15))
	}
	return namespace.Key(fmt.Appendf(nil, "block %d", n))
}

// patience is long: the machine may be stopped for a while.
const patience = 5 * time.Minute

// pagesPatience is as long as a page service's reservations allow.
const pagesPatience = 50 * time.Second

func pattern(n, shard int) workload.Pattern { return workload.PatternOf(uint64(n), uint64(shard)) }

// shards returns the shards of the n-th block with fresh buffers.
func (o opening) shards(n int) []kvstore.Shard {
	l := o.Config.Layout
	return l.ByBlock([]kvstore.Key{o.key(n)}, [][]byte{make([]byte, l.BlockBytes)})
}

// save saves blocks and waits until the first store has them.
func (c chain) save(ctx context.Context, numbers ...int) error {
	var batch []kvstore.Shard
	for _, n := range numbers {
		one := c.shards(n)
		for _, shard := range one {
			pattern(n, shard.Index).Fill(shard.Buf)
		}
		batch = append(batch, one...)
	}
	task, err := c.Save(ctx, batch)
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
func (c chain) load(ctx context.Context, n int) (verdict, error) {
	batch := c.shards(n)
	for _, shard := range batch {
		pattern(n, shard.Index).Spoil(shard.Buf)
	}
	task, err := c.Load(ctx, batch)
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

// roleEnv makes this binary a process that is killed, or one of the stress. It reads its
// order, JSON, from standard input.
const roleEnv = "KV3FS_BLOCKSOAK_ROLE"

func TestMain(m *testing.M) {
	roles := map[string]func(*json.Decoder) error{"writer": writer, "stress": stress}
	if role := roles[os.Getenv(roleEnv)]; role != nil {
		if err := role(json.NewDecoder(os.Stdin)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	workInMemory()
	os.Exit(daemontest.Main(m))
}

// workInMemory puts all files into memory, unless KV3FS_TEST_DIR says where, or there is no
// room: on a disk most of the time is spent waiting for it, and no test here cuts its power.
func workInMemory() {
	const memory, needBytes = "/dev/shm", 2 << 30
	var st unix.Statfs_t
	if os.Getenv(testDirEnv) == "" && unix.Statfs(memory, &st) == nil && st.Type == unix.TMPFS_MAGIC && int64(st.Bavail)*st.Bsize >= needBytes {
		os.Setenv(testDirEnv, memory)
	}
}

const testDirEnv = "KV3FS_TEST_DIR"

// order is what a writer is to do.
type order struct {
	Opening opening
	First   int
}

// writer saves blocks forever, in batches of several, some of them by layer, and prints
// which have been flushed, one line for each batch.
func writer(in *json.Decoder) error {
	var o order
	if err := in.Decode(&o); err != nil {
		return err
	}
	c, err := o.Opening.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience) // in case its parent dies
	defer cancel()
	fmt.Println("open")
	const batch = 5
	for n := o.First; ; n += batch {
		if err := c.save(ctx, n, n+1, n+2, n+3, n+4); err != nil {
			return err
		}
		if err := c.Flush(ctx); err != nil {
			return err
		}
		fmt.Println(n + batch)
	}
}
