package keeper

import (
	"context"
	"errors"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

// Broken is a file that is not whole, and that nobody has open through the daemon.
type Broken struct {
	Path      string
	Key       FileKey
	Bytes     int64
	Trouble   classify.Trouble
	Young     bool // within its grace period: a writer may be at work on another host, or open it once more
	Removable bool // by the keeper, once it is not young: others are for an operator to look at
}

// mostSiblings bounds how many files of a directory are asked how large a block is.
const mostSiblings = 4096

// Broken calls fn with the files below a directory that are not whole, as far as names and
// sizes tell, until it returns false. It looks at every file, so it may take long. What cannot
// be read is left out.
func (k *Keeper) Broken(ctx context.Context, top *inventory.Directory, fn func(Broken) bool) error {
	return k.broken(ctx, k.inv.Below(top), func(v *victim, is trouble) bool {
		return fn(Broken{Path: v.path, Key: v.info.Key, Bytes: v.info.SizeBytes, Trouble: is.kind, Young: is.young, Removable: v.layout.MayReap(is.kind)})
	})
}

// reapBroken removes from directories what is not whole and not young.
func (k *Keeper) reapBroken(ctx context.Context, dirs []*inventory.Directory) {
	err := k.broken(ctx, dirs, func(v *victim, is trouble) bool {
		f, ok := k.inv.File(v.info.Key)
		if ok && v.layout.MayReap(is.kind) && !is.young {
			v.Candidate = inventory.Candidate{Key: v.info.Key, Dir: v.Dir, LastUse: f.LastUse, Kind: f.Kind}
			before := k.reaped.Load()
			k.removeOne(v, purge{broken: true, count: &k.reaped}, &outcome{})
			if k.reaped.Load() > before {
				if more, now := k.pace.Log("broken"); now {
					k.Log.Info("removed a file that its writer did not complete", "file", v.path, "trouble", is.kind, "bytes", v.info.SizeBytes, "more", more)
				}
			}
		}
		return true
	})
	if err != nil && ctx.Err() == nil {
		k.complain("broken", "cannot look for files that their writers did not complete", "err", err)
	}
}

// trouble is what is wrong with a file.
type trouble struct {
	kind  classify.Trouble
	young bool // it is within its grace period
}

func (k *Keeper) broken(ctx context.Context, dirs []*inventory.Directory, fn func(*victim, trouble) bool) error {
	counts := k.countsBlocks()
	for _, d := range dirs {
		dir, there := k.inv.Path(d)
		if !there {
			continue
		}
		var found []victim
		var troubles []trouble
		var shape *classify.Shape
		err := k.inv.Names(d, func(name string, _ uint64, stat func() (inventory.Info, error)) bool {
			at := path.Join(dir, name)
			layout := classify.Classify(at, classify.Context{})
			if layout.Owner == classify.Unknown {
				return ctx.Err() == nil
			}
			info, err := stat()
			if err != nil || !info.Regular {
				return ctx.Err() == nil
			}
			if shape == nil && (layout.Owner == classify.RTPLLM || layout.Owner == classify.KVCM) {
				shape = k.shapeOf(d, dir)
			}
			v := victim{Candidate: inventory.Candidate{Dir: d}, dir: dir, name: name, path: at, info: info, layout: layout}
			if is := k.troubleOf(&v, shape, counts); is.kind != classify.Fine {
				found, troubles = append(found, v), append(troubles, is)
			}
			return ctx.Err() == nil
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			continue // the scan counts and logs it
		}
		for i := range found {
			if !fn(&found[i], troubles[i]) {
				return nil
			}
		}
	}
	return nil
}

// troubleOf says what is wrong with a file that nobody has open.
func (k *Keeper) troubleOf(v *victim, shape *classify.Shape, counts bool) (is trouble) {
	if f, ok := k.inv.File(v.info.Key); !ok || f.InUse {
		return trouble{}
	}
	is.young = k.young(&v.layout, &v.info, &outcome{})
	facts := classify.Facts{SizeBytes: v.info.SizeBytes, AllocatedBytes: classify.Unallocated, Modified: time.Unix(0, v.info.MtimeNs)}
	if counts {
		facts.AllocatedBytes = v.info.AllocatedBytes
	}
	if other := v.layout.OtherOf(); other != "" {
		facts.Other = k.presence(path.Dir(other), path.Base(other))
	}
	facts.PeerBytes = k.peerBytes(&v.layout)
	if shape == nil {
		shape = &classify.Shape{}
	}
	// Its age was looked at, by a clock that may have been set meanwhile.
	is.kind = v.layout.Broken(facts, *shape, facts.Modified.Add(max(v.layout.Grace, time.Second)), 0)
	if v.layout.MayReap(is.kind) && !v.layout.Temp {
		is.young = k.atWork(&v.info, k.graceOf(&v.layout), &outcome{}) || is.young
	}
	return is
}

// presence says whether a file is there that another one needs, or that shows that the other is not
// whole: a temporary file counts only if it was left behind.
func (k *Keeper) presence(dir, name string) classify.Presence {
	d, err := k.inv.Find(dir)
	var info inventory.Info
	if err == nil {
		info, err = k.inv.Stat(d, name)
	}
	layout := classify.Classify(path.Join(dir, name), classify.Context{})
	switch {
	case errors.Is(err, unix.ENOENT):
		return classify.Absent
	case err != nil, layout.Temp && k.young(&layout, &info, &outcome{}):
		return classify.NotKnown
	}
	return classify.Present
}

// peerBytes returns the largest size of the files of other ranks that are as long as this one if it is whole. One that is being written
// is never too long.
func (k *Keeper) peerBytes(f *classify.File) (most int64) {
	for _, at := range f.Peers() {
		d, err := k.inv.Find(path.Dir(at))
		if err != nil {
			continue
		}
		if info, err := k.inv.Stat(d, path.Base(at)); err == nil && info.Regular {
			most = max(most, info.SizeBytes)
		}
	}
	return most
}

// shapeOf finds out how large a block is in a directory.
func (k *Keeper) shapeOf(d *inventory.Directory, dir string) *classify.Shape {
	var siblings []classify.Sibling
	// Those that can be read are enough.
	_ = k.inv.Names(d, func(name string, _ uint64, stat func() (inventory.Info, error)) bool {
		layout := classify.Classify(path.Join(dir, name), classify.Context{})
		if info, err := stat(); err == nil && info.Regular && layout.Owner != classify.Unknown && !k.young(&layout, &info, &outcome{}) {
			siblings = append(siblings, classify.Sibling{File: layout, SizeBytes: info.SizeBytes})
		}
		return len(siblings) < mostSiblings
	})
	bytes, ok := classify.BlockBytes(siblings)
	if !ok {
		return &classify.Shape{}
	}
	return &classify.Shape{BlockBytes: bytes}
}

// countsBlocks reports whether the blocks of a file tell where it has holes: not where the
// file system compresses, or counts late.
func (k *Keeper) countsBlocks() bool {
	var st unix.Statfs_t
	if unix.Fstatfs(k.inv.FD(), &st) != nil {
		return false
	}
	return st.Type == unix.EXT4_SUPER_MAGIC || st.Type == unix.XFS_SUPER_MAGIC || st.Type == unix.TMPFS_MAGIC
}
