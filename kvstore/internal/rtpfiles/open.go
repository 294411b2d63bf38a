package rtpfiles

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
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
	PackBlocks  int    // how many blocks an engine's file has at most; 16 for RTP-LLM, 1 for KVCM
	dir         string // of the blocks, below Root

	Timeout time.Duration // 30 s
}

// Store is a kv.Store and a kv.Registrar.
type Store struct {
	*blockfiles.Store
	rings bool
}

// Rings reports whether data moves through rings.
func (s *Store) Rings() bool { return s.rings }

const (
	defaultOpenFiles = 1024

	// fileMode is the engines' own: they open files for reading and writing even where they
	// only read.
	fileMode = 0o666
	dirMode  = 0o777
)

// open opens the store of a directory. Its parents are made below the root only: a root
// that does not exist is a mount that is missing.
func (o Options) open(name string, format blockfiles.Format, namesTell bool) (*Store, error) {
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
	s, err := blockfiles.Open(blockfiles.Options{
		Name:              name,
		Layout:            o.Layout,
		Namespace:         o.Namespace,
		Checksums:         o.Checksums,
		Roots:             []string{dir},
		Format:            format,
		FileMode:          fileMode,
		NamesTell:         namesTell,
		Engine:            engine,
		OpenFiles:         o.OpenFiles,
		RunningQueueDepth: o.Accepted,
		Timeout:           o.Timeout,
	})
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return &Store{s, rings}, nil
}

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

// deleteChunk is how many blocks Delete gives to the store at a time, which deletes so few
// in their order.
const deleteChunk = 8

// Delete deletes the blocks in the reverse of the order given, that of a prompt: RTP-LLM
// takes a prompt for stored if its last blocks are.
func (s *Store) Delete(ctx context.Context, keys []kv.Key) error {
	keys = slices.Clone(keys)
	slices.Reverse(keys)
	var errs []error
	for chunk := range slices.Chunk(keys, deleteChunk) {
		err := s.Store.Delete(ctx, chunk)
		if ctx.Err() != nil || errors.Is(err, kv.ErrClosed) {
			return err
		}
		errs = append(errs, err)
	}
	if len(keys) == 0 {
		return s.Store.Delete(ctx, nil)
	}
	return errors.Join(errs...)
}
