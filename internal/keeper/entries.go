package keeper

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

// Listed is a file as a listing shows it.
type Listed struct {
	Path          string `json:"path"` // below the data directory
	Owner         string `json:"owner"`
	Model         string `json:"model,omitempty"` // where the name tells
	Bytes         int64  `json:"bytes"`           // on the disk
	UnusedSeconds int64  `json:"unused_seconds"`
	Uses          int    `json:"uses"` // beyond that it was written
	InUse         bool   `json:"in_use,omitempty"`
	Pinned        bool   `json:"pinned,omitempty"`
	Temporary     bool   `json:"temporary,omitempty"`
	Trouble       string `json:"trouble,omitempty"` // of one that its writer did not complete
	Young         bool   `json:"young,omitempty"`   // it has trouble, but a writer may still be at work on it
}

// Query says which files are to be listed. What is zero asks for nothing.
type Query struct {
	Selection
	Pinned bool   `json:"pinned,omitempty"`
	Broken bool   `json:"broken,omitempty"`
	Sort   string `json:"sort,omitempty"` // "bytes", "unused" or "uses", the most first; "": as they are found
	Most   int    `json:"most,omitempty"` // how many; 0: all, if they are not sorted
}

// MostSorted bounds Query.Most where files are sorted: they are all in memory.
const MostSorted = 10000

var errEnough = errors.New("enough")

// List calls fn with the files that a query asks for. Without an order they come directory by
// directory, and files come in no order, as they are read.
func (k *Keeper) List(ctx context.Context, q Query, fn func(Listed) error) error {
	if err := q.check(); err != nil {
		return err
	}
	before, ok := orders[q.Sort]
	switch {
	case !ok:
		return fmt.Errorf("there is no order %q", q.Sort)
	case q.Most < 0, q.Sort != "" && (q.Most < 1 || q.Most > MostSorted):
		return fmt.Errorf("%d files: ask for at least one, and of sorted ones for at most %d", q.Most, MostSorted)
	}
	chosen := ranking{before: before}
	n := 0
	give := func(e Listed) error {
		if q.Sort != "" {
			chosen.add(e, q.Most)
			return nil
		}
		if err := fn(e); err != nil {
			return err
		}
		if n++; n == q.Most {
			return errEnough
		}
		return nil
	}
	err := k.each(ctx, q, give)
	if err != nil && err != errEnough {
		return err
	}
	slices.SortFunc(chosen.all, func(a, b Listed) int { return cmp.Or(before(b, a), cmp.Compare(a.Path, b.Path)) })
	for _, e := range chosen.all {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// orders compare by what a listing may be sorted by.
var orders = map[string]func(a, b Listed) int{
	"":       func(Listed, Listed) int { return 0 },
	"bytes":  func(a, b Listed) int { return cmp.Compare(a.Bytes, b.Bytes) },
	"unused": func(a, b Listed) int { return cmp.Compare(a.UnusedSeconds, b.UnusedSeconds) },
	"uses":   func(a, b Listed) int { return cmp.Compare(a.Uses, b.Uses) },
}

// ranking holds the greatest entries, as a heap with the least on top.
type ranking struct {
	before func(a, b Listed) int
	all    []Listed
}

func (r *ranking) Len() int           { return len(r.all) }
func (r *ranking) Less(i, j int) bool { return r.before(r.all[i], r.all[j]) < 0 }
func (r *ranking) Swap(i, j int)      { r.all[i], r.all[j] = r.all[j], r.all[i] }
func (r *ranking) Push(e any)         { r.all = append(r.all, e.(Listed)) }
func (r *ranking) Pop() any {
	e := r.all[len(r.all)-1]
	r.all = r.all[:len(r.all)-1]
	return e
}

func (r *ranking) add(e Listed, most int) {
	switch {
	case len(r.all) < most:
		heap.Push(r, e)
	case r.before(e, r.all[0]) > 0:
		r.all[0] = e
		heap.Fix(r, 0)
	}
}

// each calls give with what a query asks for, in no order.
func (k *Keeper) each(ctx context.Context, q Query, give func(Listed) error) error {
	if q.Broken {
		return k.eachBroken(ctx, q, give)
	}
	return k.selected(ctx, &q.Selection, func(_ place, f found, layout *classify.File) error {
		if e := k.listed(f, layout); !q.Pinned || e.Pinned {
			return give(e)
		}
		return nil
	})
}

// eachBroken is each for files that their writers did not complete.
func (k *Keeper) eachBroken(ctx context.Context, q Query, give func(Listed) error) error {
	patterns, means := q.Patterns, k.meanings(&q.Selection)
	if len(patterns) == 0 {
		patterns = []string{"."}
	}
	for i, pattern := range patterns {
		err := k.brokenOf(ctx, &q, pattern, func(e Listed) error {
			if i > 0 && anyCovers(means[:i], e.Path) {
				return nil // it was given already
			}
			return give(e)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// brokenOf is eachBroken for one pattern.
func (k *Keeper) brokenOf(ctx context.Context, q *Query, pattern string, give func(Listed) error) error {
	m, err := k.meaningOf(pattern)
	if err != nil {
		return err
	}
	top, err := k.inv.Find(below(m.pattern))
	if m.plain {
		if d, isDir := k.inv.Find(m.path); isDir == nil {
			top, err = d, nil
		}
	}
	if err != nil {
		return fmt.Errorf("%q: %w", pattern, err)
	}
	var failed error
	err = k.Broken(ctx, top, func(b Broken) bool {
		if !covers(m.pattern, b.Path) {
			return true
		}
		f := found{path: b.Path, key: b.Key}
		if !k.fill(&f) {
			return true
		}
		layout := classify.Classify(b.Path, classify.Context{})
		e := k.listed(f, &layout)
		e.Trouble, e.Young = b.Trouble.String(), b.Young
		if k.asksFor(&q.Filter, &f, &layout) && (!q.Pinned || e.Pinned) {
			failed = give(e)
		}
		return failed == nil
	})
	return cmp.Or(failed, err)
}

func (k *Keeper) listed(f found, layout *classify.File) Listed {
	return Listed{
		Path: f.path, Owner: layout.Owner.String(), Model: layout.Model, Bytes: f.bytes, UnusedSeconds: int64(k.unused(&f) / time.Second),
		Uses: int(f.uses), InUse: f.inUse, Pinned: k.pinned(f.path), Temporary: layout.Temp,
	}
}

// Description is all that is known of a file or directory: one of the two.
type Description struct {
	File      *FileDescription `json:"file,omitempty"`
	Directory *Usage           `json:"directory,omitempty"`
	// RoomBytes is what the directory, or that of the file, may still take; nil: what the disk has.
	RoomBytes *int64 `json:"room_bytes,omitempty"`
}

// FileDescription is all that is known of a file.
type FileDescription struct {
	Listed
	SizeBytes int64     `json:"size_bytes"` // its length
	Modified  time.Time `json:"modified"`
	Names     int       `json:"names"` // how many it has
	DType     string    `json:"dtype,omitempty"`
	WorldSize int       `json:"world_size,omitempty"`
	Rank      int       `json:"rank"`
	Key       string    `json:"key,omitempty"`
	Parts     []PartOf  `json:"parts,omitempty"` // of its entry, in the order in which they go
	MayGo     bool      `json:"may_go"`
	Why       string    `json:"why"` // it may, or may not
}

// PartOf is a file of an entry.
type PartOf struct {
	Path    string `json:"path"`
	Missing bool   `json:"missing,omitempty"`
}

// Describe says all that is known of the file or directory at a path.
func (k *Keeper) Describe(at string) (Description, error) {
	var about Description
	d, where, err := k.find(at)
	switch {
	case err == nil:
		use := usageOf(d, where)
		about.Directory = &use
	case errors.Is(err, unix.ENOTDIR):
		err = k.single(at, func(p place, f found) error {
			d = p.dir
			info, err := f.stat()
			if err != nil {
				return err
			}
			about.File = k.describe(p, f, info)
			return nil
		})
	}
	if err != nil {
		return Description{}, err
	}
	if limit, left := k.inv.Room(k.inv.KeyOf(d)); limit != inventory.Unlimited {
		about.RoomBytes = &left
	}
	return about, nil
}

func (k *Keeper) describe(p place, f found, info inventory.Info) *FileDescription {
	layout := classify.Classify(f.path, classify.Context{})
	about := &FileDescription{
		Listed: k.listed(f, &layout), SizeBytes: info.SizeBytes, Modified: time.Unix(0, info.MtimeNs), Names: int(info.Links),
		DType: layout.DType, WorldSize: layout.WorldSize, Rank: layout.Rank, Key: layout.Key,
	}
	if layout.Owner != classify.Unknown {
		for _, part := range layout.Parts() {
			about.Parts = append(about.Parts, PartOf{part, !k.isThere(part)})
		}
	}
	v := k.victimOf(p, f, info, layout)
	about.Why = k.whyItStays(v)
	if about.MayGo = about.Why == ""; about.MayGo {
		about.Why = "goes when its turn has come and room is needed"
		if layout.Temp {
			about.Why = "a temporary file whose writer has left it: it goes soon"
		}
	}
	if f.known {
		if is := k.troubleOf(v, k.around(v)); is.kind != classify.Fine {
			about.Trouble, about.Young = is.kind.String(), is.young
		}
	}
	return about
}

// around finds out how large a block is where that says whether a file is whole.
func (k *Keeper) around(v *victim) *surroundings {
	is := &surroundings{counts: k.countsBlocks()}
	if v.layout.Owner == classify.RTPLLM || v.layout.Owner == classify.KVCM {
		is.evidence.Shape = k.shapeOf(v.Dir, v.dir)
	}
	return is
}
