package keeper

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// State is what there is in a data directory, its limits, and what has gone so far.
type State struct {
	Dir              string  `json:"data"`
	Capacity         string  `json:"capacity"`    // as it was given; "none"
	LimitBytes       int64   `json:"limit_bytes"` // 0: none
	HighPercent      float64 `json:"high_percent"`
	LowPercent       float64 `json:"low_percent"`
	UsedBytes        int64   `json:"used_bytes"`
	ReservedBytes    int64   `json:"reserved_bytes"` // set aside for writes
	Files            int64   `json:"files"`
	Directories      int64   `json:"directories"`
	Scanned          bool    `json:"scanned"` // everything has been found
	UnreadableFiles  int64   `json:"unreadable_files"`
	WaitingWriters   int64   `json:"waiting_writers"`
	Quotas           int     `json:"quotas"`
	TTLs             int     `json:"ttls"`
	Pins             int     `json:"pins"`
	EvictedFiles     int64   `json:"evicted_files"` // since the start, as all that follow
	EvictedBytes     int64   `json:"evicted_bytes"`
	ExpiredFiles     int64   `json:"expired_files"`
	ReapedFiles      int64   `json:"reaped_files"`
	RequestedFiles   int64   `json:"requested_files"`   // removed because an operator said so
	KeptFiles        int64   `json:"kept_files"`        // chosen to go, and found changed, in use or young, each once
	WaitedWrites     int64   `json:"waited_writes"`     // that did not find room at once
	RefusedWrites    int64   `json:"refused_writes"`    // that ended with ENOSPC or EDQUOT
	EvictsUnknown    bool    `json:"evicts_unknown"`    // files of no layout may go
	UseBonusSeconds  float64 `json:"use_bonus_seconds"` // by which a use puts off a file's turn
	GraceSeconds     float64 `json:"grace_seconds"`     // 0: as a file's layout needs
	RunsSinceSeconds int64   `json:"runs_since_seconds"`
	EvictedUnused    Ages    `json:"evicted_unused"` // how long the files that went for room had not been used
}

// State returns the state.
func (k *Keeper) State() State {
	root, stats := k.inv.Root(), k.Stats()
	k.rulesMu.Lock()
	quotas, ttls, pins := len(k.rules.quotas), len(k.rules.ttls), len(k.rules.pins)
	k.rulesMu.Unlock()
	used, limits := root.Bytes(), k.limits()
	return State{
		Dir: k.Dir, Capacity: limits.Capacity.String(), LimitBytes: limitOf(root), HighPercent: limits.HighPercent, LowPercent: limits.LowPercent,
		UsedBytes: used, ReservedBytes: max(root.Claimed()-used, 0), Files: root.Files(), Directories: int64(k.inv.Directories()),
		Scanned: k.inv.Scanned(), UnreadableFiles: stats.Unread, WaitingWriters: k.waiting.Load(), Quotas: quotas, TTLs: ttls, Pins: pins,
		EvictedFiles: stats.Evicted, EvictedBytes: stats.EvictedBytes, ExpiredFiles: stats.Expired, ReapedFiles: stats.Reaped,
		RequestedFiles: k.requested.Load(), KeptFiles: stats.Kept, WaitedWrites: stats.Waited, RefusedWrites: stats.Refused,
		EvictsUnknown: k.EvictUnknown, UseBonusSeconds: k.bonus().Seconds(), GraceSeconds: limits.Grace.Seconds(),
		RunsSinceSeconds: int64(k.inv.Elapsed() / time.Second), EvictedUnused: k.evictedAges.read(),
	}
}

// limitOf returns a directory's own limit, 0 if it has none.
func limitOf(d *inventory.Directory) int64 {
	if limit := d.Limit(); limit != inventory.Unlimited {
		return limit
	}
	return 0
}

// Usage is what a directory takes with everything below it.
type Usage struct {
	Path       string `json:"path"` // below the data directory, "." for it itself
	Bytes      int64  `json:"bytes"`
	Files      int64  `json:"files"`
	LimitBytes int64  `json:"limit_bytes,omitempty"` // its own; 0: none
}

func usageOf(d *inventory.Directory, at string) Usage {
	return Usage{Path: at, Bytes: d.Bytes(), Files: d.Files(), LimitBytes: limitOf(d)}
}

// Usage calls fn with what a directory takes and what those take that are at most that deep
// below it, in the order of their paths. It looks this up and reads no directory.
func (k *Keeper) Usage(ctx context.Context, dir string, depth int, fn func(Usage) error) error {
	top, at, err := k.find(dir)
	if err != nil {
		return err
	}
	for _, p := range k.placesBelow(top, at, depth) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(usageOf(p.dir, p.path)); err != nil {
			return err
		}
	}
	return nil
}

// find returns the directory at a path below the data directory, and the path in its plain form.
func (k *Keeper) find(dir string) (*inventory.Directory, string, error) {
	dir = path.Clean(dir)
	d, err := k.inv.Find(dir)
	if err != nil {
		return nil, "", fmt.Errorf("%q: %w", dir, err)
	}
	at, ok := k.inv.Path(d)
	if !ok {
		return nil, "", fmt.Errorf("%q: %w", dir, unix.ENOENT)
	}
	return d, at, nil
}

// place is a directory and where it is.
type place struct {
	dir  *inventory.Directory
	path string
}

const anyDepth = int(^uint(0) >> 1)

// placesBelow returns a directory and those at most that deep below it, by path.
func (k *Keeper) placesBelow(top *inventory.Directory, at string, depth int) []place {
	level := func(p string) int {
		if p == at {
			return 0
		}
		if at != "." {
			p = strings.TrimPrefix(p, at+"/")
		}
		return strings.Count(p, "/") + 1
	}
	var all []place
	for _, d := range k.inv.Below(top) {
		if p, ok := k.inv.Path(d); ok && (depth == anyDepth || level(p) <= depth) {
			all = append(all, place{d, p})
		}
	}
	slices.SortFunc(all, func(a, b place) int {
		switch { // the top first
		case a.dir == top:
			return -1
		case b.dir == top:
			return 1
		}
		return strings.Compare(a.path, b.path)
	})
	return all
}

// Group is what the files of an owner and a model take.
type Group struct {
	Owner string `json:"owner,omitempty"`
	Model string `json:"model,omitempty"` // where the name tells
	Bytes int64  `json:"bytes"`
	Files int64  `json:"files"`
}

// Groups returns what the files below a directory take, by owner and model, the largest
// first. It looks this up and reads no directory.
func (k *Keeper) Groups(dir string) ([]Group, error) {
	top, _, err := k.find(dir)
	if err != nil {
		return nil, err
	}
	groups := []Group{}
	for _, t := range k.inv.Groups(top) {
		groups = append(groups, Group{Owner: t.Owner, Model: t.Model, Bytes: t.Bytes, Files: t.Files})
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Model, b.Model))
	})
	return groups, nil
}

// Branch and Share are parts of a Breakdown.
type (
	Branch = inventory.Branch
	Share  = inventory.Share
)

// Breakdown returns a directory and the largest of those at most depth levels below it, each after its parent, and the largest groups
// of owner and model there; most of each at most. It looks at no disk. ENOENT: nothing is known of the directory.
func (k *Keeper) Breakdown(dir string, depth, most int) (branches []Branch, groups []Share, err error) {
	branches, groups, ok := k.inv.Breakdown(path.Clean(dir), depth, most)
	if !ok {
		return nil, nil, fmt.Errorf("%q: %w", dir, unix.ENOENT)
	}
	return branches, groups, nil
}
