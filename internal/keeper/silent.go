package keeper

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// Silent says how to keep a directory that others serve and use, so that nobody tells of changes and uses: the
// keeper looks itself, and goes by the times that the file system has.
type Silent struct {
	// Atime: files' atimes tell of uses. Otherwise their mtimes alone do.
	Atime bool

	// RefreshEvery is how often the keeper looks for what has changed. 0: a minute. In Options.Rescan it has looked
	// at every file again, at some of them each time.
	RefreshEvery time.Duration

	// LooksPerSecond bounds how many entries the keeper looks at in a second. 0: no bound.
	LooksPerSecond int

	// Behind is by how much the clock that mtimes are from may be behind this host's: files are
	// left alone for so much longer.
	Behind time.Duration

	// May is asked right before each file is removed; an error keeps it. nil: all may.
	May func() error
}

func (s *Silent) fill() {
	if s != nil && s.RefreshEvery == 0 {
		s.RefreshEvery = time.Minute
	}
}

// silentInventory returns how to look. now is the limits in effect.
func (o *Options) silentInventory(now *atomic.Pointer[Limits]) *inventory.Silent {
	s := o.Silent
	if s == nil {
		return nil
	}
	newFor := func() time.Duration { return cmp.Or(now.Load().Grace, time.Hour) + s.behind() }
	return &inventory.Silent{Atime: s.Atime, PerSecond: s.LooksPerSecond, RefreshEvery: s.RefreshEvery, WholeEvery: max(0, o.Rescan), NewFor: newFor, May: s.May}
}

// watch looks for what has changed until ctx ends.
func (k *Keeper) watch(ctx context.Context) {
	tick := time.NewTicker(k.Silent.RefreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		whole, err := k.inv.Refresh(ctx)
		if err != nil {
			return
		}
		k.kickNow()
		k.reapBroken(ctx, whole)
	}
}

func (s *Silent) behind() time.Duration {
	if s == nil {
		return 0
	}
	return max(0, s.Behind)
}
