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
		return fn(Broken{Path: v.path, Key: v.info.Key, Bytes: v.info.SizeBytes, Trouble: is.kind, Young: is.young, Removable: is.reap})
	})
}

// reapBroken removes from directories what is not whole and not young.
func (k *Keeper) reapBroken(ctx context.Context, dirs []*inventory.Directory) {
	err := k.broken(ctx, dirs, func(v *victim, is trouble) bool {
		f, ok := k.inv.File(v.info.Key)
		if ok && is.reap && !is.young {
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
	facts classify.Facts
	reap  bool // it may be removed once it is not young
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
		around := surroundings{counts: counts}
		err := k.inv.Names(d, func(name string, _ uint64, stat func() (inventory.Info, error)) bool {
			around.evidence.OwnLogs = around.evidence.OwnLogs || classify.MarkOf(name) == classify.OwnLogs
			at := path.Join(dir, name)
			layout := classify.Classify(at, classify.Context{})
			if layout.Owner == classify.Unknown {
				return ctx.Err() == nil
			}
			info, err := stat()
			if err != nil || !info.Regular {
				return ctx.Err() == nil
			}
			if layout.Owner == classify.RTPLLM || layout.Owner == classify.KVCM {
				if !around.shaped {
					around.evidence.Shape, around.shaped = k.shapeOf(d, dir), true
				}
				around.evidence.Add(layout, info.SizeBytes, time.Unix(0, info.MtimeNs), k.young(&layout, &info, &outcome{}))
			}
			v := victim{Candidate: inventory.Candidate{Dir: d}, dir: dir, name: name, path: at, info: info, layout: layout}
			if is := k.troubleOf(&v, &around); is.kind != classify.Fine {
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
			v, is := &found[i], troubles[i]
			is.reap = v.layout.MayReap(is.kind) && around.evidence.Certain(v.layout, is.facts, is.kind)
			if !fn(v, is) {
				return nil
			}
		}
	}
	return nil
}

// surroundings are what troubles of the files of one directory are told by.
type surroundings struct {
	counts   bool // the blocks of files tell where they have holes
	evidence classify.Evidence
	shaped   bool // its shape was looked for

	peers    []*inventory.Directory // of the other ranks, as far as they are there
	gathered bool                   // they were looked for
}

// troubleOf says what is wrong with a file that nobody has open.
func (k *Keeper) troubleOf(v *victim, around *surroundings) (is trouble) {
	if f, ok := k.inv.File(v.info.Key); !ok || f.InUse {
		return trouble{}
	}
	is.young = k.young(&v.layout, &v.info, &outcome{})
	is.facts = classify.Facts{SizeBytes: v.info.SizeBytes, AllocatedBytes: classify.Unallocated, Modified: time.Unix(0, v.info.MtimeNs)}
	if around.counts {
		is.facts.AllocatedBytes = v.info.AllocatedBytes
	}
	if other := v.layout.OtherOf(); other != "" {
		is.facts.Other = k.presence(path.Dir(other), path.Base(other))
	}
	is.facts.Peers = k.peersOf(v, around)
	// Its age was looked at, by a clock that may have been set meanwhile.
	is.kind = v.layout.Broken(is.facts, around.evidence.Shape, is.facts.Modified.Add(max(v.layout.Grace, time.Second)), 0)
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

// peersOf returns the files of other ranks that are as long as this one if it is whole. One that is being written
// is never too long. Which ranks have a directory is looked up once.
func (k *Keeper) peersOf(v *victim, around *surroundings) (peers []classify.Peer) {
	dirs := v.layout.PeerDirs()
	if len(dirs) == 0 {
		return nil
	}
	if !around.gathered {
		around.gathered = true
		for _, dir := range dirs {
			if d, err := k.inv.Find(dir); err == nil {
				around.peers = append(around.peers, d)
			}
		}
	}
	for _, d := range around.peers {
		if info, err := k.inv.Stat(d, v.name); err == nil && info.Regular {
			peers = append(peers, classify.Peer{SizeBytes: info.SizeBytes, Modified: time.Unix(0, info.MtimeNs)})
		}
	}
	return peers
}

// shapeOf finds out how large a block is in a directory.
func (k *Keeper) shapeOf(d *inventory.Directory, dir string) classify.Shape {
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
		return classify.Shape{}
	}
	return classify.Shape{BlockBytes: bytes}
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
