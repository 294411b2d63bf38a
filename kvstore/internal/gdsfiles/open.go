// Package gdsfiles is the store of LMCache's GDS backend: it keeps each block in a pair of files
// that LMCache can use at the same time, see package layout/gds.
//
//	<dir>/<d1>/<d2>/<key>.kvcache.safetensors            a header and the block
//	<dir>/<d1>/<d2>/<key>.kvcache.safetensors.metadata   the header; without it there is no block
//
// A key that stands for a number of 64 bits is the chunk of LMCache's with that hash. Any other
// key is that of a digest, if there are IDs, and else has a hash that no chunk of LMCache's has.
package gdsfiles

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/kv3fs/kv3fs/internal/gpudirect"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/layout/gds"
	"github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/gpuio"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// Options of Open. Fields that are zero have their defaults.
type Options struct {
	// Dirs are LMCache's gds_path. GPU is the number of the GPU, which decides in which of
	// them blocks are written: the GPU modulo their number. Blocks are found in all of them.
	Dirs []string
	GPU  int

	Layout    kv.Layout
	Namespace kv.Fingerprint

	// What is in the names of files: model, number of workers and worker, and LMCache's word
	// for the element type, the layer in layerwise mode, nil where a chunk has all, and the
	// request's tags.
	Model               string
	WorldSize, WorkerID int
	DType               string
	Layer               *int
	Tags                []lmcache.Tag

	// Shape and MemoryFormat are in the headers, or Groups, which are several tensors one
	// after the other. Default: keys and values, Layers, Tokens, and the rest, and format 1;
	// with Layer: Tokens, keys and values, and the rest, and format 2.
	Shape          []int64
	Groups         []gds.Group
	MemoryFormat   int
	Layers, Tokens int

	// IDs knows the ids that are whole digests. Keys are then numbers or those. Without it
	// every key has a block. DigestNumbers writes digests as numbers, as LMCache has them
	// with older releases of vLLM; both are read.
	IDs           IDs
	DigestNumbers bool

	// DirectIO bypasses the page cache: use_direct_io. Default false.
	DirectIO bool

	// Device is whose memory shards may name, nil for none. With NoDirect no direct
	// transfers are tried: use_cufile is false. BufferBytes is how much memory is registered
	// for them: gds_buffer_size. Default 1 GiB.
	Device      device.Device
	NoDirect    bool
	BufferBytes int64

	// Streams is how many reads and writes are under way at once: disk_io_threads. Default 4.
	Streams int
	// WaitingQueueDepth is how many more wait; 1024.
	WaitingQueueDepth int
	// RunningQueueDepth is how many shards are accepted; 32768.
	RunningQueueDepth int

	// Timeout bounds every wait. Default 30 s.
	Timeout time.Duration

	// Checksums: see kv.Checksums. Default auto.
	Checksums kv.Checksums

	// SweepAge is how old what a crash has left must be to be removed. Default 10 minutes, or
	// more with a long Timeout. See blockfiles.Options.
	SweepAge time.Duration

	Logger *slog.Logger
}

const (
	name = "Gds"

	defaultStreams     = 4 // as in LMCache
	defaultBufferBytes = 1 << 30
	defaultTimeout     = 30 * time.Second
	keepOpen           = 64
)

// Store is a kv.Store.
type Store struct{ *blockfiles.Store }

// Open opens the store.
func Open(o Options) (*Store, error) {
	if err := o.Layout.Check(); err != nil {
		return nil, err
	}
	if len(o.Dirs) == 0 {
		return nil, errors.New("kvstore: gds_path is empty; name a directory")
	}
	if o.GPU < 0 {
		return nil, fmt.Errorf("kvstore: the GPU is number %d; count from 0", o.GPU)
	}
	for i, dir := range o.Dirs {
		for _, other := range o.Dirs[:i] {
			if filepath.Clean(dir) == filepath.Clean(other) {
				return nil, fmt.Errorf("kvstore: gds_path names %s twice", dir)
			}
		}
	}
	way, err := o.prepare()
	if err != nil {
		return nil, err
	}
	f, err := newFormat(o, way.Type == "wekafs")
	if err != nil {
		return nil, err
	}
	moves := posix.Options{
		Streams: cmp.Or(o.Streams, defaultStreams), WaitingQueueDepth: o.WaitingQueueDepth, Timeout: o.Timeout, DirectIO: o.DirectIO,
	}
	files := blockfiles.Options{
		Name:              name,
		Layout:            o.Layout,
		Namespace:         o.Namespace,
		Checksums:         o.Checksums,
		Roots:             o.Dirs,
		Format:            f,
		SumsDir:           f.sumsDir(),
		NamesTell:         true,
		OpenFiles:         keepOpen,
		RunningQueueDepth: o.RunningQueueDepth,
		Timeout:           o.Timeout,
		SweepAge:          o.SweepAge,
	}
	if o.Device != nil {
		mover := o.mover(way)
		moves.Device, files.Device = mover, o.Device
		files.DeviceBytes, files.DeviceCopies, files.DeviceTransfers = mover.Bytes, mover.Copies, mover.Transfers
	}
	engine := posix.New(moves)
	files.Engine = engine
	s, err := blockfiles.Open(files)
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return &Store{s}, nil
}

// prepare makes the directories and says whether GPUDirect Storage suits the one that is written
// to.
func (o *Options) prepare() (way gpudirect.Verdict, err error) {
	found := make(chan gpudirect.Verdict, 1)
	err = blockfiles.Bounded(cmp.Or(o.Timeout, defaultTimeout), o.Dirs, func() error {
		for _, dir := range o.Dirs {
			if err := makeDir(dir); err != nil {
				return err
			}
		}
		way, err := judge(o.Dirs[o.GPU%len(o.Dirs)])
		found <- way
		return err
	}, func() {})
	if err != nil {
		return way, err
	}
	return <-found, nil
}

// mover moves the memory of the device, directly unless the file system has no way to do that.
func (o Options) mover(way gpudirect.Verdict) *gpuio.Mover {
	direct := !o.NoDirect && way.Way != gpudirect.Refused
	if o.Logger != nil && !o.NoDirect && way.Way != gpudirect.Direct {
		o.Logger.Warn("GPUDirect Storage does not suit the directory of blocks", "reason", way.Why, "cure", way.Cure, "way", way.Way.String())
	}
	return gpuio.New(gpuio.Options{
		Device: o.Device, Direct: direct, DirectIO: o.DirectIO, BufferBytes: cmp.Or(o.BufferBytes, defaultBufferBytes), Logger: o.Logger,
	})
}

// makeDir makes a directory if there is none.
func makeDir(dir string) error {
	switch err := os.Mkdir(dir, 0o775); {
	case err == nil, errors.Is(err, fs.ErrExist):
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("kvstore: make the directory of blocks %s: there is no %s, or nothing can be made in it; make it, or mount what belongs there",
			dir, filepath.Dir(filepath.Clean(dir)))
	default:
		return fmt.Errorf("kvstore: make the directory of blocks: %w", err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("kvstore: %s is to hold blocks and must be a directory: %w", dir, cmp.Or(err, error(fs.ErrExist)))
	}
	return nil
}

// judge says whether GPUDirect Storage suits a directory.
func judge(dir string) (gpudirect.Verdict, error) {
	real, err := filepath.Abs(dir)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return gpudirect.Verdict{}, fmt.Errorf("kvstore: gds_path: %w", err)
	}
	v, err := gpudirect.Judge(host.Local(), real)
	if err != nil {
		return v, fmt.Errorf("kvstore: find the file system of gds_path: %w", err)
	}
	return v, nil
}
