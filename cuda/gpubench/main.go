// Command gpubench moves blocks between a store and a GPU's memory, verifies every byte, and
// prints bandwidths beside those of one large copy, which is what the bus gives.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kv3fs/kv3fs/cuda"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

func main() {
	var o options
	flag.IntVar(&o.device.Ordinal, "gpu", 0, "number of the GPU among those that CUDA_VISIBLE_DEVICES shows")
	flag.StringVar(&o.device.Library, "library", "", "the driver's library (default libcuda.so.1)")
	flag.StringVar(&o.device.FileLibrary, "file-library", "", "cuFile's library (default libcufile.so.0)")
	flag.IntVar(&o.blockMiB, "block", 32, "size of a block in MiB")
	flag.IntVar(&o.blocks, "blocks", 32, "how many blocks")
	flag.IntVar(&o.times, "times", 5, "how often each is done; the best counts")
	flag.StringVar(&o.dir, "dir", os.TempDir(), "a directory on the disk that Segment and Gds keep blocks on")
	flag.Parse()
	if err := run(context.Background(), o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpubench:", err)
		os.Exit(1)
	}
}

type options struct {
	device           cuda.Options
	blockMiB, blocks int
	times            int
	dir              string
}

// bench is a device with blocks in its memory, and pinned memory of the same size.
type bench struct {
	options
	ctx    context.Context
	out    io.Writer
	gpu    *cuda.Device
	stream device.Stream
	event  device.Event
	pinned []byte // what the blocks are
	back   []byte // pinned as well, for what came back
	mem    *device.Buffer
	layout kvstore.Layout
	keys   []kvstore.Key
	places []device.Place
	plain  [2]float64 // bytes a second of one large copy, to the device and to the host
	wrong  int
}

const shardBytes = 512 << 10

func run(ctx context.Context, o options, out io.Writer) (err error) {
	if o.blockMiB < 1 || o.blocks < 1 || o.times < 1 {
		return errors.New("--block, --blocks and --times must be 1 or more")
	}
	gpu, err := cuda.Open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gpu.Close()) }()
	b := &bench{options: o, ctx: ctx, out: out, gpu: gpu, layout: kvstore.Layout{BlockBytes: int64(o.blockMiB) << 20, ShardBytes: shardBytes}}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(); err != nil {
		return err
	}
	fmt.Fprintf(out, "device: %s\n%d blocks of %d MiB in shards of %d KiB, best of %d\n\n", gpu.Name(), o.blocks, o.blockMiB, shardBytes>>10, o.times)
	fmt.Fprintf(out, "%-44s %8s %9s  %s\n", "", "GB/s", "of plain", "bytes")
	for _, step := range []func() error{b.plainCopies, b.cache, b.segment, b.gds} {
		if err := step(); err != nil {
			return err
		}
	}
	if b.wrong > 0 {
		return fmt.Errorf("%d times other bytes came back", b.wrong)
	}
	return nil
}

func (b *bench) total() int64 { return int64(b.blocks) * b.layout.BlockBytes }

func (b *bench) open() (err error) {
	if b.pinned, err = b.gpu.AllocHost(b.total()); err != nil {
		return err
	}
	if b.back, err = b.gpu.AllocHost(b.total()); err != nil {
		return err
	}
	if b.mem, err = b.gpu.Alloc(b.total()); err != nil {
		return err
	}
	if b.stream, err = b.gpu.NewStream(); err != nil {
		return err
	}
	if b.event, err = b.gpu.NewEvent(); err != nil {
		return err
	}
	x := uint64(1)
	for i := range b.pinned { // no two blocks are equal
		x = x*6364136223846793005 + 1442695040888963407
		b.pinned[i] = byte(x >> 56)
	}
	for i := range b.blocks {
		b.keys = append(b.keys, kvstore.Key{1, byte(i), byte(i >> 8)})
		b.places = append(b.places, b.mem.At(int64(i)*b.layout.BlockBytes))
	}
	return nil
}

func (b *bench) close() error {
	var errs []error
	if b.event != nil {
		errs = append(errs, b.event.Close())
	}
	if b.stream != nil {
		errs = append(errs, b.stream.Close())
	}
	if b.mem != nil {
		errs = append(errs, b.gpu.Free(b.mem))
	}
	for _, mem := range [][]byte{b.pinned, b.back} {
		if mem != nil {
			errs = append(errs, b.gpu.FreeHost(mem))
		}
	}
	return errors.Join(errs...)
}

// toDevice and toHost are one large copy.
func (b *bench) toDevice(src []byte) error {
	return errors.Join(b.stream.ToDevice(b.mem.At(0), src), b.event.Record(b.stream), b.event.Wait())
}

func (b *bench) toHost(dst []byte) error {
	return errors.Join(b.stream.ToHost(dst, b.mem.At(0)), b.event.Record(b.stream), b.event.Wait())
}

// poison overwrites what the device has, so that nothing verifies against its own leftovers.
func (b *bench) poison() error {
	for i := range b.back {
		b.back[i] = 0xee
	}
	return b.toDevice(b.back)
}

// best does something a number of times, each after prepare, and returns the bytes a second of
// the best.
func (b *bench) best(prepare, do func() error) (float64, error) {
	var best time.Duration
	for n := range b.times {
		if err := prepare(); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := do(); err != nil {
			return 0, err
		}
		if took := time.Since(began); n == 0 || took < best {
			best = took
		}
	}
	return float64(b.total()) / best.Seconds(), nil
}

func (b *bench) print(what string, rate, plain float64, right bool) {
	share, verdict := "", "right"
	if plain > 0 {
		share = fmt.Sprintf("%.0f %%", 100*rate/plain)
	}
	if !right {
		verdict = "WRONG"
		b.wrong++
	}
	fmt.Fprintf(b.out, "%-44s %8.2f %9s  %s\n", what, rate/1e9, share, verdict)
}

// onDevice reports whether the device has the blocks.
func (b *bench) onDevice() (bool, error) {
	clear(b.back)
	err := b.toHost(b.back)
	return bytes.Equal(b.back, b.pinned), err
}

func nothing() error { return nil }

// plainCopies measures what the bus gives.
func (b *bench) plainCopies() error {
	rate, err := b.best(b.poison, func() error { return b.toDevice(b.pinned) })
	if err != nil {
		return err
	}
	right, err := b.onDevice()
	if err != nil {
		return err
	}
	b.plain[0] = rate
	b.print("one copy to the device (plain)", rate, 0, right)
	rate, err = b.best(func() error { clear(b.back); return nil }, func() error { return b.toHost(b.back) })
	if err != nil {
		return err
	}
	b.plain[1] = rate
	b.print("one copy to the host (plain)", rate, 0, bytes.Equal(b.back, b.pinned))
	return nil
}

// config is of a chain for twice the blocks.
func (b *bench) config() kvstore.Config {
	return kvstore.Config{
		Namespace: keys.Namespace{Model: "kv3fs/gpubench", BlockTokens: 16, DType: "uint8"},
		Layout:    b.layout, Timeout: time.Minute,
	}
}

func (b *bench) save(s *kvstore.Store) error {
	task, err := s.Save(b.ctx, b.layout.ByBlockOn(b.keys, b.places))
	if err != nil {
		return err
	}
	return task.Wait(b.ctx)
}

func (b *bench) load(s *kvstore.Store) error {
	task, err := s.Load(b.ctx, b.layout.ByLayerOn(b.keys, b.places))
	if err != nil {
		return err
	}
	return task.Wait(b.ctx)
}

// kept reports whether the store has the blocks, as the host sees them.
func (b *bench) kept(s *kvstore.Store) (bool, error) {
	clear(b.back)
	var bufs [][]byte
	for i := range b.blocks {
		bufs = append(bufs, b.back[int64(i)*b.layout.BlockBytes:int64(i+1)*b.layout.BlockBytes])
	}
	task, err := s.Load(b.ctx, b.layout.ByBlock(b.keys, bufs))
	if err == nil {
		err = task.Wait(b.ctx)
	}
	return bytes.Equal(b.back, b.pinned), err
}

// saves and loads measures both, and prints them beside the plain copies if there are any.
func (b *bench) saves(name string, s *kvstore.Store, plain float64) error {
	rate, err := b.best(func() error {
		return errors.Join(s.Delete(b.ctx, b.keys), b.toDevice(b.pinned))
	}, func() error { return b.save(s) })
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	right, err := b.kept(s)
	b.print(name, rate, plain, right)
	return err
}

func (b *bench) loads(name string, s *kvstore.Store, plain float64) error {
	rate, err := b.best(b.poison, func() error { return b.load(s) })
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	right, err := b.onDevice()
	b.print(name, rate, plain, right)
	return err
}

func (b *bench) cache() (err error) {
	c := b.config()
	c.Cache = &kvstore.CacheOptions{CapacityBytes: 2 * b.total(), Device: b.gpu}
	s, err := kvstore.Open("Cache|Empty", c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := b.saves("Cache: save", s, b.plain[1]); err != nil {
		return err
	}
	return b.loads("Cache: load, layer by layer", s, b.plain[0])
}

// segment loads from the disk by way of the cache, each time with an empty one.
func (b *bench) segment() (err error) {
	dir, err := os.MkdirTemp(b.dir, "kv3fs-gpubench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := b.config()
	c.Cache = &kvstore.CacheOptions{CapacityBytes: 2 * b.total(), Device: b.gpu}
	c.Segment = &kvstore.SegmentOptions{Dir: filepath.Join(dir, "segments"), CapacityBytes: 4*b.total() + 1<<30}
	var s *kvstore.Store
	open := func() (err error) {
		if s != nil {
			if err := s.Close(); err != nil {
				return err
			}
		}
		next, err := kvstore.Open("Cache|Segment", c)
		if err == nil {
			s = next // else there is the old one to close, which has no harm in it
		}
		return err
	}
	if err := open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := errors.Join(b.toDevice(b.pinned), b.save(s), s.Flush(b.ctx)); err != nil {
		return err
	}
	rate, err := b.best(func() error { return errors.Join(open(), b.poison()) }, func() error { return b.load(s) })
	if err != nil {
		return err
	}
	right, err := b.onDevice()
	b.print("Cache|Segment: load from the disk", rate, 0, right)
	return err
}

// gds saves and loads past the host's memory where cuFile can, and says whether it did.
func (b *bench) gds() (err error) {
	dir, err := os.MkdirTemp(b.dir, "kv3fs-gpubench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := b.config()
	c.Checksums = kvstore.ChecksumsOff // they are computed on the host
	c.Gds = &kvstore.GdsOptions{Dirs: []string{dir}, Shape: []int64{b.layout.BlockBytes}, MemoryFormat: 4, Device: b.gpu, DirectIO: true, Transfers: 16}
	s, err := kvstore.Open("Gds", c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := b.saves("Gds: save", s, 0); err != nil {
		return err
	}
	before := s.Stats().DeviceBytes
	if err := b.loads("Gds: load", s, 0); err != nil {
		return err
	}
	way := "directly, through cuFile"
	if s.Stats().DeviceBytes > before {
		way = "through host memory: cuFile is missing or refuses, or the file system has no way to"
	}
	fmt.Fprintf(b.out, "\nGds moved its loads %s\n", way)
	return nil
}
