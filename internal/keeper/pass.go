package keeper

import (
	"context"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

// Why says why a file goes, or stays.
type Why string

// Why a file goes.
const (
	Incomplete Why = "incomplete"  // its writer is gone and did not complete it
	LeftBehind Why = "left-behind" // a temporary file that nobody is writing
	Expired    Why = "ttl"
	ForRoom    Why = "room"
)

// Why a file stays.
const (
	EnoughRoom    Why = "enough-room" // its turn has not come
	Young         Why = "young"       // it changed within its grace period
	Pinned        Why = "pinned"
	InUse         Why = "in-use" // somebody on this host has it open, or it was used or changed since it was chosen
	OwnersAlone   Why = "owners-alone"
	UnknownLayout Why = "unknown-layout"
	SeveralNames  Why = "several-names"
)

// Entry is a file that goes or stays.
type Entry struct {
	Path   string // below the directory
	Bytes  int64  // that it takes
	Unused time.Duration
	Uses   int // since it was written
	Owner  classify.Owner
	Why    Why
}

// Pass does once what Run does all the time: it scans the directory and removes what has to go, and tells of each
// file that went, in order. With pretend nothing goes. It must not be called while Run runs.
func (k *Keeper) Pass(ctx context.Context, pretend bool, went func(Entry)) (*Remainder, error) {
	k.once = true
	if err := k.inv.Scan(ctx); err != nil {
		return nil, err
	}
	if err := k.setCapacity(); err != nil {
		return nil, err
	}
	k.findQuotas()
	rest := &Remainder{k: k, went: map[FileKey]bool{}, inUse: map[FileKey]bool{}}
	remove, why := k.inv.Unlink, ForRoom
	if pretend {
		remove = k.inv.Pretend
	}
	k.Unlink = func(dir, name string, want Victim) error {
		e := k.entry(path.Join(dir, name), want.Key, why)
		err := remove(dir, name, want)
		switch {
		case err == nil:
			rest.went[want.Key] = true
			went(e)
		case err == unix.EBUSY, err == unix.ESTALE:
			rest.inUse[want.Key] = true
		}
		return err
	}
	why = LeftBehind
	k.reap(ctx)
	why = Incomplete
	k.reapBroken(ctx, k.inv.Below(k.inv.Root()))
	why = Expired
	k.expire(ctx)
	why = ForRoom
	for again := true; again && ctx.Err() == nil; again = len(k.late) > 0 {
		k.makeRoom(ctx)
	}
	return rest, ctx.Err()
}

// Save saves the uses of files, after a Pass.
func (k *Keeper) Save() error { return k.saveHeat() }

// entry describes a file that has a record.
func (k *Keeper) entry(at string, key FileKey, why Why) Entry {
	f, _ := k.inv.File(key)
	return Entry{
		Path: at, Bytes: f.Bytes, Unused: time.Duration(k.inv.Now()-f.LastUse) * time.Second, Uses: int(f.Uses),
		Owner: classify.Classify(at, classify.Context{}).Owner, Why: why,
	}
}

// Remainder is what a Pass has left.
type Remainder struct {
	k           *Keeper
	went, inUse map[FileKey]bool
}

// Each calls fn with the files that stay, a directory at a time, until it returns false. Those in directories that cannot be read
// are left out.
func (r *Remainder) Each(ctx context.Context, fn func(Entry) bool) error {
	for _, d := range r.k.inv.Below(r.k.inv.Root()) {
		dir, there := r.k.inv.Path(d)
		if !there {
			continue
		}
		more := true
		_ = r.k.inv.Names(d, func(name string, _ uint64, stat func() (inventory.Info, error)) bool { // the scan has said what cannot be read
			if dir == "." && name == r.k.Skip {
				return true
			}
			if info, err := stat(); err == nil && info.Regular && !r.went[info.Key] {
				at := path.Join(dir, name)
				more = fn(r.k.entry(at, info.Key, r.why(at, &info)))
			}
			return more && ctx.Err() == nil
		})
		if !more || ctx.Err() != nil {
			break
		}
	}
	return ctx.Err()
}

func (r *Remainder) why(at string, info *inventory.Info) Why {
	k := r.k
	layout := classify.Classify(at, classify.Context{})
	switch kind := kindOf(at); {
	case kind == inventory.Kept:
		return OwnersAlone
	case kind == inventory.Unknown && !k.EvictUnknown:
		return UnknownLayout
	case info.Links > 1:
		return SeveralNames
	case k.pinned(at):
		return Pinned
	case r.inUse[info.Key]:
		return InUse
	case k.young(&layout, info, &outcome{}):
		return Young
	}
	return EnoughRoom
}
