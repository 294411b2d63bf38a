package keeper

import (
	"context"
	"fmt"
	"path"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

// Removal is what became of a file that an operator wants removed.
type Removal struct {
	Path    string `json:"path"`
	Bytes   int64  `json:"bytes"`
	Removed bool   `json:"removed"`
	Stays   string `json:"stays,omitempty"` // why; "" of a dry run: it would go
}

// mostRequested is how many names of a directory are read before files are removed.
const mostRequested = 4096

// Evict removes the files of a selection, those that may go, and calls fn with each.
// A dry run removes nothing and says what would go.
func (k *Keeper) Evict(ctx context.Context, s Selection, dryRun bool, fn func(Removal) error) error {
	var batch []*victim
	end := func() error {
		for _, v := range batch {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := fn(k.request(v, dryRun)); err != nil {
				return err
			}
		}
		batch = batch[:0]
		return nil
	}
	means := k.meanings(&s)
	err := k.selected(ctx, &s, func(p place, f found, layout *classify.File) error {
		info, err := f.stat()
		if err != nil || !info.Regular {
			return nil // it is gone
		}
		v := k.victimOf(p, f, info, *layout)
		if data := k.dataOf(v); data != "" && (len(means) == 0 || anyCovers(means, data)) {
			return nil // it goes with that
		}
		if batch = append(batch, v); len(batch) == mostRequested {
			return end()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return end()
}

// victimOf returns a file that was found as one that may be removed.
func (k *Keeper) victimOf(p place, f found, info inventory.Info, layout classify.File) *victim {
	return &victim{
		Candidate: inventory.Candidate{Key: info.Key, Dir: p.dir, Bytes: f.bytes, LastUse: f.lastUse, Uses: f.uses, Kind: kindOf(f.path)},
		dir:       p.path, name: f.name, path: f.path, info: info, layout: layout,
	}
}

// request removes one file, or says why not.
func (k *Keeper) request(v *victim, dryRun bool) Removal {
	r := Removal{Path: v.path, Bytes: v.Bytes, Stays: k.whyItStays(v)}
	if dryRun || r.Stays != "" {
		return r
	}
	var gone atomic.Int64
	k.removeOne(v, purge{count: &gone}, &outcome{})
	if r.Removed = gone.Load() > 0; r.Removed {
		k.requested.Add(1)
	} else {
		r.Stays = "somebody has it open, or it was just changed"
	}
	return r
}

// whyItStays says why a file may not go now; "" if it may, as far as can be told without trying.
func (k *Keeper) whyItStays(v *victim) string {
	f, known := k.inv.File(v.info.Key)
	var out outcome
	switch kind := kindOf(v.path); {
	case kind == inventory.Unknown:
		return "of no layout that kv3fs knows, so only a TTL or its owner removes it"
	case isPageFile(&v.layout):
		return k.whyPageFileStays(v)
	case kind == inventory.Kept:
		return "it holds many entries, or is its owner's state, so only its owner may remove it"
	case v.info.Links > 1:
		return "it has several names"
	}
	if pin, ok := k.pinOf(v.path); ok {
		return fmt.Sprintf("pinned by %v", pin)
	}
	switch {
	case !known:
		return "the scan of the directory has not found it yet"
	case f.InUse:
		return "it is open or registered"
	case k.young(&v.layout, &v.info, &out):
		return fmt.Sprintf("it was changed just now; its grace period ends in %v", out.young.Round(time.Second))
	}
	if data := k.dataOf(v); data != "" {
		return fmt.Sprintf("it goes with %q", data)
	}
	return ""
}

// dataOf returns the path of the data of a side file, "" if v is none or its data is not there.
func (k *Keeper) dataOf(v *victim) string {
	if v.layout.Part != classify.Side || v.layout.Temp {
		return ""
	}
	parts := v.layout.Parts()
	if len(parts) != 2 {
		return ""
	}
	data := parts[1]
	if _, err := k.inv.Stat(v.Dir, path.Base(data)); err != nil {
		return ""
	}
	return data
}
