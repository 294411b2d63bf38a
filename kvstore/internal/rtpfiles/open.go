package rtpfiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/usrbio"
)

// Options of OpenRTPLLM and OpenKVCM. Fields that are zero have their defaults.
type Options struct {
	// Root is the directory that the engine calls its root directory. It must exist. Where
	// it is on a 3FS, data moves through rings.
	Root string

	Layout    kv.Layout
	Namespace kv.Fingerprint
	Checksums kv.Checksums // auto

	Rings       int    // in each direction, on a 3FS; 2
	RingEntries int    // requests in flight in each; 64
	BufferBytes int64  // of memory for buffers that are not registered; 64 MiB
	NUMANode    *int   // of that memory; any
	Transfers   int    // reads and writes at once, elsewhere; 32
	Waiting     int    // requests that may wait; 8192 on a 3FS, else 1024
	Accepted    int    // shards under way; 32768
	OpenFiles   int    // that stay open; 1024
	PackBlocks  int    // how many blocks a file has at most; 16 for RTP-LLM, 1 for KVCM
	dir         string // of the blocks, below Root

	Timeout time.Duration // 30 s
}

// Store is a kv.Store and a kv.Registrar.
type Store struct {
	kv.Store
	registrar kv.Registrar
	rings     bool
}

// Register registers memory with what moves the bytes.
func (s *Store) Register(name string, mem []byte) error { return s.registrar.Register(name, mem) }

// Rings reports whether data moves through rings.
func (s *Store) Rings() bool { return s.rings }

const (
	defaultOpenFiles = 1024
	defaultAccepted  = 32768
	defaultTimeout   = 30 * time.Second

	// spotsDir has the logs that say which file has which block.
	spotsDir = kv3fs.ItemsDir

	// fileMode is the engines' own: they open files for reading and writing even where they
	// only read.
	fileMode = 0o666
	dirMode  = 0o777
)

// open opens the store of a directory. Its parents are made below the root only: a root
// that does not exist is a mount that is missing.
func (o Options) open(name string, format engineFormat, namesTell bool) (*Store, error) {
	if err := o.Layout.Check(); err != nil {
		return nil, err
	}
	if o.OpenFiles < 0 {
		return nil, fmt.Errorf("kvstore: %d open files; choose 0 or more", o.OpenFiles)
	}
	if o.OpenFiles == 0 {
		o.OpenFiles = defaultOpenFiles
	}
	if info, err := os.Stat(o.Root); err != nil || !info.IsDir() {
		if err == nil {
			err = errors.New("it is no directory")
		}
		return nil, fmt.Errorf("kvstore: use the root directory %s: %w; make it, or mount what belongs there", o.Root, err)
	}
	dir := filepath.Join(o.Root, o.dir)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("kvstore: make the directory of blocks: %w", err)
	}
	engine, rings, err := o.engine()
	if err != nil {
		return nil, err
	}
	files := func(f blockfiles.Format, e transfer.Engine, blocks int) (*blockfiles.Store, error) {
		return blockfiles.Open(blockfiles.Options{
			Name:              name,
			Layout:            kv.Layout{BlockBytes: int64(blocks) * o.Layout.BlockBytes, ShardBytes: o.Layout.ShardBytes},
			FileBlocks:        blocks,
			Namespace:         o.Namespace,
			Checksums:         o.Checksums,
			Roots:             []string{dir},
			Format:            f,
			FileMode:          fileMode,
			NamesTell:         namesTell,
			Engine:            e,
			OpenFiles:         o.OpenFiles,
			RunningQueueDepth: o.Accepted * blocks,
			Timeout:           o.Timeout,
			SumsDir:           sumsDir(f, blocks),
		})
	}
	if o.PackBlocks == 1 {
		s, err := files(format, engine, 1)
		if err != nil {
			return nil, errors.Join(err, engine.Close())
		}
		return &Store{alone{s}, engine, rings}, nil
	}
	x, err := o.openItems(name, dir, format, engine, files)
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return &Store{x, engine, rings}, nil
}

// openFiles opens the store of an engine's files of so many blocks each.
type openFiles func(f blockfiles.Format, e transfer.Engine, blocks int) (*blockfiles.Store, error)

// openItems opens the store of files with several blocks.
func (o Options) openItems(name, dir string, format engineFormat, engine transfer.Engine, open openFiles) (*items, error) {
	if n := o.PackBlocks * o.Layout.Shards(); n > sums.MostShards {
		return nil, fmt.Errorf("kvstore: a file of %d blocks has %d shards; at most %d are possible: have fewer blocks in a file, or larger shards", o.PackBlocks, n, sums.MostShards)
	}
	ones, err := open(format, sharedEngine{engine}, 1)
	if err != nil {
		return nil, err
	}
	spotLog, err := sums.OpenIn(filepath.Join(dir, spotsDir), sums.Shape{Namespace: o.Namespace, BlockBytes: o.Layout.BlockBytes, Shards: recordNumbers})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kvstore: open the record of which file has which block: %w", err), ones.Close())
	}
	x := &items{
		o: o, name: name, format: format, engine: engine, Store: ones, spotLog: spotLog,
		packing: make(chan struct{}, 1), compacting: make(chan struct{}, 1),
		files: map[int]*opening{}, loose: map[kv.Key]struct{}{}, fresh: map[file]struct{}{},
	}
	x.openFiles = func(blocks int) (*blockfiles.Store, error) {
		return open(fileFormat{format, flat{o.Layout.BlockBytes, o.PackBlocks}, blocks}, sharedEngine{x.engine}, blocks)
	}
	x.o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	x.group = batch.NewGroup(o.Layout, &x.counters, x.o.Timeout)
	accepted := cmp.Or(o.Accepted, defaultAccepted)
	x.limits = [2]*batch.Limit{batch.Load: batch.LimitShards(accepted), batch.Save: batch.LimitShards(accepted)}
	x.end = sync.OnceValue(x.shutdown)
	return x, nil
}

// sharedEngine is an engine that several stores use and none closes.
type sharedEngine struct{ transfer.Engine }

func (sharedEngine) Close() error { return nil }

// engine returns what moves the bytes.
func (o Options) engine() (_ transfer.Engine, rings bool, _ error) {
	mount, err := usrbio.FindMount(context.Background(), o.Root)
	if errors.Is(err, usrbio.ErrNotMounted) {
		return posix.New(posix.Options{Streams: o.Transfers, WaitingQueueDepth: o.Waiting, Timeout: o.Timeout}), false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("kvstore: find the mount of %s: %w", o.Root, err)
	}
	engine, err := ringio.New(ringio.Options{
		Mount: mount, Streams: o.Rings, Entries: o.RingEntries, BufferBytes: o.BufferBytes,
		WaitingQueueDepth: o.Waiting, Timeout: o.Timeout, NUMANode: o.NUMANode,
	})
	if err != nil {
		return nil, false, fmt.Errorf("kvstore: rings on %s: %w", mount, err)
	}
	return engine, true, nil
}
