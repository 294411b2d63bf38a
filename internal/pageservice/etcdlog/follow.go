package etcdlog

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// follower applies the log as it comes, until this host leads. All but watch and candidates is
// done by the goroutine of Start.
type follower struct {
	*Log
	position position
	loaded   bool       // position is that of the owner
	used     bool       // the owner was given something
	blank    bool       // the log cannot be read, and begins anew with this host
	base     *reference // the snapshot with which it began
	refs     snapshots  // as seen last

	most mark      // the last batch that this host has applied, whatever was read since
	led  time.Time // when another host led last, as far as yield has seen; zero: it has not looked
}

func newFollower(l *Log) *follower { return &follower{Log: l} }

// leadTerms bounds how long a host that was elected may need to apply the rest, in lease times. Then it makes room for
// another. It was warm, so that there is little to apply; what takes long is to load a snapshot.
const leadTerms = 3

// damageTicks is for how many periods nothing is tried again after damage was found.
const damageTicks = 5

// run follows until this host leads.
func (f *follower) run(ctx context.Context) (*leader, error) {
	ctx, cancel := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	hints := make(chan struct{}, 1)
	helpers.Go(func() { f.watch(ctx, hints) })
	var stands *candidate
	defer func() { stands.withdraw() }()
	tick := time.NewTicker(f.o.Period)
	defer tick.Stop()
	for {
		v, err := f.catchUp(ctx)
		if ctx.Err() != nil {
			return nil, pageservice.ErrClosed
		}
		if errors.Is(err, ErrPromises) {
			return nil, err
		}
		if err == nil {
			err = f.yield(ctx, &v)
		}
		stays := false
		if err == nil {
			err = f.o.Stand(ctx)
			stays = err != nil
		}
		if err == nil {
			f.note(f.cluster.Rests())
		} else {
			f.note(err)
		}
		switch {
		case err == nil && stands == nil:
			stands = f.stand(ctx)
			helpers.Go(stands.campaign)
		case !f.loaded || stays || errors.Is(err, pageservice.ErrCorrupt) || errors.Is(err, errYields):
			stands.withdraw() // others, which are warm, may stand behind it
			stands = nil
		}
		hint := hints
		skip := 0
		if err != nil {
			hint = nil
		}
		if errors.Is(err, pageservice.ErrCorrupt) {
			skip = damageTicks
		}
		for again := false; !again; {
			select {
			case <-ctx.Done():
				return nil, pageservice.ErrClosed
			case <-hint:
				again = true
			case <-tick.C:
				skip--
				again = skip < 0
			case term := <-stands.wins():
				stands = nil
				led, err := f.lead(ctx, term)
				if err == nil {
					return led, nil
				}
				f.resign(term)
				if ctx.Err() != nil {
					return nil, pageservice.ErrClosed
				}
				if errors.Is(err, ErrPromises) {
					return nil, err
				}
				f.note(err)
				// Another host may be able to lead, and should be elected first.
				hint, skip = nil, damageTicks
			}
		}
	}
}

// note tells of an error that keeps this host from leading; nil: nothing does.
func (f *follower) note(err error) {
	f.setState(func(s *State) {
		before := s.Reason
		s.Role, s.Warm, s.Reason = Following, err == nil, ""
		if err != nil {
			s.Reason = err.Error()
		}
		if s.Reason == before {
			return
		}
		if err != nil {
			f.o.Logger.Warn("page log: this host cannot lead", "err", err)
		} else {
			f.o.Logger.Info("page log: this host can lead", "index", s.Applied)
		}
	})
}

// watch hints whenever the head may have changed. If it does not, nothing is lost but time.
func (f *follower) watch(ctx context.Context, hints chan<- struct{}) {
	for ctx.Err() == nil {
		for range f.cluster.Client().Watch(clientv3.WithRequireLeader(ctx), f.keys.head()) {
			select {
			case hints <- struct{}{}:
			default:
			}
		}
		pause(ctx, retryPause)
	}
}

// resign gives up a term, which may be over.
func (l *Log) resign(term *cluster.Term) {
	ctx, cancel := context.WithTimeout(context.Background(), l.cluster.LeaseTTL())
	defer cancel()
	if err := term.Resign(ctx); err != nil {
		l.o.Logger.Warn("page log: the others have to wait for this host's lease", "err", err)
	}
}

// catchUp applies everything up to the head that it reads. A log that is to begin anew need not be readable.
func (f *follower) catchUp(ctx context.Context) (view, error) {
	v, err := f.view(ctx)
	if err != nil {
		return v, err
	}
	f.setState(func(s *State) { s.Head = v.head.Index })
	if err := v.kept(&f.o); err != nil {
		return v, err
	}
	over, err := f.startedOver(ctx, v)
	if err != nil {
		return v, err
	}
	f.refs = v.refs
	if f.blank && over && f.position.index == v.head.Index {
		return v, nil
	}
	f.loaded = f.loaded && !f.blank
	f.blank = false
	if v.head.Index == 0 && f.most.Index > 0 && f.cluster.ID() == f.most.Cluster {
		if err := f.identify(ctx); err != nil {
			return v, err
		}
		if f.cluster.ID() == f.most.Cluster {
			return v, f.shorter(v, f.most)
		}
	}
	if !over && v.head.Index < f.most.Index && v.head.Cluster == f.most.Cluster {
		return v, f.shorter(v, f.most) // what was applied may be right nevertheless
	}
	if err = f.read(ctx, v); err == nil {
		return v, nil
	}
	if errors.Is(err, pageservice.ErrCorrupt) {
		f.loaded = false
		if over && !errors.Is(err, ErrNewer) {
			f.o.Logger.Warn("page log: it begins anew", "err", err)
			f.owner.Reset()
			f.position = position{index: v.head.Index, chain: v.head.Chain, at: map[uint64]mile{}}
			f.loaded, f.blank, f.base = true, true, nil
			return v, nil
		}
	}
	return v, err
}

// read applies everything up to the head of a view.
func (f *follower) read(ctx context.Context, v view) error {
	if f.loaded && v.head.Index < f.position.index {
		f.loaded = false // of an earlier life of the cluster
	}
	if !f.loaded {
		if err := f.load(ctx, v); err != nil {
			return err
		}
	}
	if err := f.compare(); err != nil {
		return err
	}
	for f.position.index < v.head.Index {
		values, err := f.fetch(ctx, f.position.index+1, v.head.Index)
		for _, value := range values {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := f.apply(value); err != nil {
				return err
			}
		}
		if errors.Is(err, errGap) {
			f.loaded = false
		}
		if err != nil {
			return err
		}
	}
	if v.head.Index > 0 && !f.position.unknown && f.position.chain != v.head.Chain {
		return damaged("%s names another batch %d than the one that this host has applied", f.keys.head(), v.head.Index)
	}
	if !f.position.unknown {
		f.most.Cluster, f.most.Index, f.most.Chain = v.head.Cluster, f.position.index, f.position.chain
	}
	return nil
}

// shorter returns the error for a log that has been longer.
func (f *follower) shorter(v view, m mark) error {
	return damaged("the log in etcd (%s) ends with batch %d, and it had got to %d: %s", f.keys.prefix, v.head.Index, m.Index, restored)
}

// restored says what has happened if the log is not what it was, and what to do.
const restored = "a member of etcd is behind, or etcd was restored from an old backup, or emptied: restore a newer one; --pages-start-over begins anew and forgets all keys"

// startedOver reports whether the log is that of a cluster which an operator has ended.
func (f *follower) startedOver(ctx context.Context, v view) (bool, error) {
	if v.head.Index == 0 || v.head.Cluster == f.cluster.ID() {
		return false, nil
	}
	if err := f.identify(ctx); err != nil {
		return false, err
	}
	return v.head.Cluster != f.cluster.ID(), nil
}

// identify finds out which cluster this is: another host may have been told to start over.
func (f *follower) identify(ctx context.Context) error {
	once, cancel := f.call(ctx)
	defer cancel()
	return f.cluster.Identify(once, f.o.DataID, true)
}
