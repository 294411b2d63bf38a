package etcdlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/cluster"
)

// errYields: this host is no candidate as long as there are others that lead better.
var errYields = errors.New("other hosts should lead")

// yield returns an error if another host should lead rather than this one: one that has all keys, where this one has forgotten some
// for lack of memory, or one that agrees with those that led before about how many ranks keys need.
func (f *follower) yield(ctx context.Context, v *view) error {
	whole := f.owner.Whole()
	f.setState(func(s *State) { s.Partial = !whole })
	same := v.head.Index == 0 || v.promises.Format == 0 || v.promises.World == f.o.World
	if whole && same {
		return nil
	}
	hosts, err := f.cluster.Hosts(ctx)
	if err != nil {
		return err
	}
	for _, h := range hosts {
		switch {
		case h.ID == f.by.Host || h.Role == "":
		case !same && h.World == v.promises.World:
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
