package storebench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/kvstore"
)

// UCMSize compares UCM's way with as many plain threads, with plain threads that also
// open each file in the mount, and with daemons that keep no checksums, for blocks of one size.
type UCMSize struct {
	BlockBytes int64  `json:"block_bytes"`
	Cold       []Load `json:"cold,omitempty"` // from the disk; not with --io buffered
	Warm       []Load `json:"warm,omitempty"` // from the page cache; not with --io direct
	Save       []Load `json:"save,omitempty"` // of new files
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
	const loads, saves = 4, 5
	return (loads*states + saves) * len(o.ucmSizes())
}

// ucmDaemon is a daemon that UCM's way is measured with.
type ucmDaemon struct {
	way string
	*measure.Daemon
}

// ucm measures loads of files as UCM leaves them: written through its rings, each a single
// request, and in the page cache no longer. And it measures how UCM writes them.
func (b *bench) ucm(ctx context.Context, rep *Report) (err error) {
	if len(b.o.ucmSizes()) == 0 {
		return nil
	}
	daemons := []ucmDaemon{{WayUCM, b.daemon}}
	const capacity = "90%" // more than is written, so that nothing is removed
	for _, other := range []struct {
		way   string
		flags []string
	}{
		{WayUCMNoSums, []string{"--checksums", "off"}},
		{WayLimited, []string{"--capacity", capacity}},
		{WayLimitedNoSums, []string{"--capacity", capacity, "--checksums", "off"}},
	} {
		d, failed := measure.StartDaemon(ctx, b.o.Binary, b.o.Scratch, b.o.IO, other.flags...)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, d.Stop()) }() // the result, which nothing here may shadow
		daemons = append(daemons, ucmDaemon{other.way, d})
	}
	for i, size := range b.o.ucmSizes() {
		measured, err := b.ucmSize(ctx, daemons, uint64(10+i), size)
		if err != nil {
			return err
		}
		rep.UCM = append(rep.UCM, *measured)
	}
	return nil
}

func (b *bench) ucmSize(ctx context.Context, daemons []ucmDaemon, number uint64, size int64) (_ *UCMSize, err error) {
	n := int(b.o.loadBytes() / size)
	one := blocksOf(number, n, kvstore.Layout{BlockBytes: size, ShardBytes: size})
	bufs := cut(b.bufs.mem.Bytes()[:int64(n)*size], size)
	name := fmt.Sprintf("ucm-%d", size)
	rep := &UCMSize{BlockBytes: size}
	// Saves come first: they need what is in the buffers, which are spoilt before each load.
	one.fill(bufs)
	if rep.Save, err = b.turns(ctx, b.ucmSaves(daemons, name, size, one, bufs), []*blocks{one}); err != nil {
		return nil, err
	}
	checked, unchecked := daemons[0], daemons[1]
	for _, d := range []ucmDaemon{checked, unchecked} {
		if err := saveOnce(ctx, d, name, size, one, bufs); err != nil {
			return nil, err
		}
	}
	data, mount := filepath.Join(checked.Data, name), filepath.Join(checked.Mount, name)
	ways := func(direct bool) []*contender {
		all := []*contender{
			{name: WayPlain, open: func(context.Context) (*way, error) { return openPlain(data, "", direct, size, bufs) }},
			{name: WayPlainOpening, open: func(context.Context) (*way, error) { return openPlain(data, mount, direct, size, bufs) }},
		}
		for _, d := range []ucmDaemon{checked, unchecked} {
			all = append(all, &contender{name: d.way, open: func(ctx context.Context) (*way, error) {
				u, err := openUCM(ctx, d.Mount, filepath.Join(d.Mount, name), size, bufs)
				if err != nil {
					return nil, err
				}
				return u.way(), nil
			}})
		}
		if direct {
			for _, x := range all {
				from := data
				if x.name == unchecked.way {
					from = filepath.Join(unchecked.Data, name)
				}
				x.before = func() error { return dropCaches(from) }
			}
		}
		return all
	}
	if b.o.IO != "buffered" {
		if rep.Cold, err = b.turns(ctx, ways(true), []*blocks{one}); err != nil {
			return nil, err
		}
	}
	if b.o.IO != "direct" {
		for _, d := range []ucmDaemon{checked, unchecked} {
			// A daemon that reads directly does not fill the page cache.
			if err := verifySaved(filepath.Join(d.Data, name), one, bufs); err != nil {
				return nil, err
			}
		}
		rep.Warm, err = b.turns(ctx, ways(false), []*blocks{one})
	}
	return rep, err
}

// saveOnce leaves the blocks as UCM does.
func saveOnce(ctx context.Context, d ucmDaemon, name string, size int64, set *blocks, bufs [][]byte) error {
	u, err := openUCM(ctx, d.Mount, filepath.Join(d.Mount, name), size, bufs)
	if err != nil {
		return err
	}
	set.fill(bufs)
	return errors.Join(u.save(ctx, set), u.close())
}
