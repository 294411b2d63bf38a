package storebench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kv3fs/kv3fs/kvstore"
)

// UCMSize compares UCM's way with as many plain threads, and with plain threads that also
// open each file in the mount, for blocks of one size.
type UCMSize struct {
	BlockBytes int64  `json:"block_bytes"`
	Cold       []Load `json:"cold,omitempty"` // from the disk; not with --io buffered
	Warm       []Load `json:"warm,omitempty"` // from the page cache; not with --io direct
}

// ucmSizes are the sizes of the blocks. Those that do not occur at least ucmLeast times in
// a load are left out.
func (o *Options) ucmSizes() (sizes []int64) {
	const ucmLeast = 2
	for _, size := range []int64{256 << 10, 1 << 20, 8 << 20} {
		if o.loadBytes()/size >= ucmLeast {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// ucmContenders returns how many contenders all sizes have.
func (o *Options) ucmContenders() int {
	states := 1
	if o.IO == "auto" {
		states = 2 // cold and warm
	}
	return 3 * states * len(o.ucmSizes())
}

// ucm measures loads of files as UCM leaves them: written through its rings, each a single
// request, and in the page cache no longer.
func (b *bench) ucm(ctx context.Context, rep *Report) error {
	for i, size := range b.o.ucmSizes() {
		measured, err := b.ucmSize(ctx, uint64(10+i), size)
		if err != nil {
			return err
		}
		rep.UCM = append(rep.UCM, *measured)
	}
	return nil
}

func (b *bench) ucmSize(ctx context.Context, number uint64, size int64) (_ *UCMSize, err error) {
	n := int(b.o.loadBytes() / size)
	one := blocksOf(number, n, kvstore.Layout{BlockBytes: size, ShardBytes: size})
	bufs := cut(b.bufs.mem.Bytes()[:int64(n)*size], size)
	name := fmt.Sprintf("ucm-%d", size)
	data, mount := filepath.Join(b.daemon.Data, name), filepath.Join(b.daemon.Mount, name)
	u, err := openUCM(ctx, b.daemon.Mount, mount, size, bufs)
	if err != nil {
		return nil, err
	}
	one.fill(bufs)
	if err := errors.Join(u.save(ctx, one), u.close()); err != nil {
		return nil, err
	}
	ways := func(direct bool) []*contender {
		return []*contender{
			{name: WayPlain, open: func(context.Context) (*way, error) { return openPlain(data, "", direct, size, bufs) }},
			{name: WayPlainOpening, open: func(context.Context) (*way, error) { return openPlain(data, mount, direct, size, bufs) }},
			{name: WayUCM, open: func(ctx context.Context) (*way, error) {
				u, err := openUCM(ctx, b.daemon.Mount, mount, size, bufs)
				if err != nil {
					return nil, err
				}
				return u.way(), nil
			}},
		}
	}
	rep := &UCMSize{BlockBytes: size}
	if b.o.IO != "buffered" {
		cold := ways(true)
		for _, x := range cold {
			x.before = func() error { return dropCaches(data) }
		}
		if rep.Cold, err = b.turns(ctx, cold, []*blocks{one}); err != nil {
			return nil, err
		}
	}
	if b.o.IO != "direct" {
		// The plain threads come first and fill the page cache.
		rep.Warm, err = b.turns(ctx, ways(false), []*blocks{one})
	}
	return rep, err
}

// ucmTo returns how UCM's way compares with another; 0 if that was not measured.
func ucmTo(way string, loads []Load) float64 {
	if other := rateOf(loads, way); other > 0 {
		return rateOf(loads, WayUCM) / other
	}
	return 0
}
