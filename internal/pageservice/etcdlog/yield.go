package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
)

// errYields: this host is no candidate as long as there are others that lead better.
var errYields = errors.New("other hosts should lead")

// yieldTerms is for how many lease times a host yields while nobody leads: those that should may be unable to. They have read the log in that
// time if they began with this one.
const yieldTerms = 4

// yield returns an error if another host should lead rather than this one: one that agrees with those that led before about how many
// ranks keys need or, if that is no difference, one that has all keys, where this one has forgotten some for lack of memory.
func (f *follower) yield(ctx context.Context, v *view) error {
	whole := f.owner.Whole()
	f.setState(func(s *State) { s.Partial = !whole })
	agrees := func(world int) bool {
		return v.head.Index == 0 || v.promises.Format == 0 || v.promises.World == world
	}
	mine := agrees(f.o.World)
	if whole && mine {
		f.led = time.Time{}
		return nil
	}
	hosts, err := f.cluster.Hosts(ctx)
	if err != nil {
		return err
	}
	if f.led.IsZero() || slices.ContainsFunc(hosts, func(h cluster.Host) bool { return h.Role == cluster.RoleLeading }) {
		f.led = time.Now()
	}
	if time.Since(f.led) > yieldTerms*f.cluster.LeaseTTL() {
		return nil
	}
	for _, h := range hosts {
		switch theirs := agrees(h.World); {
		case h.ID == f.by.Host || h.Role == "" || mine && !theirs:
		case theirs && !mine:
			return fmt.Errorf("%w: keys need %s here, and %s on host %q, as on the host that led last: run all with the same --tp",
				errYields, ranks(f.o.World), ranks(h.World), h.ID)
		case !whole && !h.Partial:
			return fmt.Errorf("%w: this one has forgotten keys for lack of memory, and host %q has all: run all with the same --pages-memory", errYields, h.ID)
		}
	}
	return nil
}

func ranks(world int) string {
	if world == 0 {
		return "all known ranks"
	}
	return fmt.Sprintf("%d ranks", world)
}

// Announced returns what the others are to know of this host.
func (l *Log) Announced() cluster.State {
	s := l.State()
	return cluster.State{
		Role: string(s.Role), Applied: s.Applied, Partial: s.Partial, World: l.o.World,
		Checkpoint: s.checkpoint.index, Hash: s.checkpoint.state, Epoch: s.epoch,
	}
}
