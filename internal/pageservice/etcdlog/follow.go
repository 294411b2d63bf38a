package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// follower applies the log as it comes, until this host leads. All but watch and campaign is
// done by the goroutine of Start.
type follower struct {
	*Log
	position position
	loaded   bool       // position is that of the owner
	used     bool       // the owner was given something
	blank    bool       // the log cannot be read, and begins anew with this host
	base     *reference // the snapshot with which it began
	refs     snapshots  // as seen last

	most    mark // the last batch that this host has ever applied
	rewound int  // how often in a row the head was before it
}

func newFollower(l *Log) *follower { return &follower{Log: l} }

// leadTimeout bounds how long a host that was elected may need to apply the rest. Then it makes room for another.
const leadTimeout = time.Minute

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
	elected := make(chan *cluster.Term)
	campaigning := false
	tick := time.NewTicker(f.o.Period)
	defer tick.Stop()
	for {
		_, err := f.catchUp(ctx)
		if ctx.Err() != nil {
			return nil, pageservice.ErrClosed
		}
		f.note(err)
		if err == nil && !campaigning {
			campaigning = true
			helpers.Go(func() { f.campaign(ctx, elected) })
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
			case term := <-elected:
				campaigning = false
				led, err := f.lead(ctx, term)
				if err == nil {
					return led, nil
				}
				f.resign(term)
				if ctx.Err() != nil {
					return nil, pageservice.ErrClosed
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

// campaign waits until this host is elected, and says so.
func (f *follower) campaign(ctx context.Context, elected chan<- *cluster.Term) {
	for ctx.Err() == nil {
		term, err := f.cluster.Campaign(ctx)
		if err != nil {
			f.o.Logger.Debug("page log: no candidate", "err", err)
			pause(ctx, f.o.Period)
			continue
		}
		busy := time.NewTimer(leadTimeout)
		select {
		case elected <- term:
			busy.Stop()
			return
		case <-ctx.Done():
		case <-busy.C: // the goroutine of Start hangs in the shared directory
		}
		busy.Stop()
		f.resign(term)
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

// catchUp applies everything up to the head that it reads.
func (f *follower) catchUp(ctx context.Context) (view, error) {
	v, err := f.view(ctx)
	if err != nil {
		return v, err
	}
	f.setState(func(s *State) { s.Head = v.head.Index })
	f.refs = v.refs
	if !f.loaded {
		if err := f.begin(ctx, v); err != nil {
			return v, err
		}
	}
	if err := f.compare(); err != nil {
		f.loaded = false
		return v, err
	}
	if v.head.Index < f.position.index {
		if f.rewound++; f.rewound > 2 {
			f.loaded = false
		}
		return v, fmt.Errorf("etcd says that the log ends with batch %d, and this host has applied %d: a member is behind, or etcd was restored", v.head.Index, f.position.index)
	}
	f.rewound = 0
	for f.position.index < v.head.Index {
		values, err := f.fetch(ctx, f.position.index+1, v.head.Index)
		for _, value := range values {
			if ctx.Err() != nil {
				return v, ctx.Err()
			}
			if err := f.apply(value); err != nil {
				f.loaded = false
				return v, err
			}
		}
		if errors.Is(err, errGap) {
			f.loaded = false
		}
		if err != nil {
			return v, err
		}
	}
	if v.head.Index > 0 && !f.position.unknown && f.position.chain != v.head.Chain {
		f.loaded = false
		return v, damaged("%s names another batch %d than the one that this host has applied", f.keys.head(), v.head.Index)
	}
	if f.position.index > f.most.Index && !f.position.unknown {
		f.most.Index, f.most.Chain = f.position.index, f.position.chain
	}
	return v, nil
}

// begin loads the state. A log that is to begin anew need not be readable.
func (f *follower) begin(ctx context.Context, v view) error {
	f.blank = false
	over, err := f.startedOver(ctx, v)
	if err != nil {
		return err
	}
	err = f.load(ctx, v)
	if err != nil && over && errors.Is(err, pageservice.ErrCorrupt) && !errors.Is(err, ErrNewer) {
		f.o.Logger.Warn("page log: it begins anew", "err", err)
		f.position = position{index: v.head.Index, chain: v.head.Chain, at: map[uint64]mile{}}
		f.loaded, f.blank, f.base = true, true, nil
		return nil
	}
	return err
}

// startedOver reports whether the log is that of a cluster which an operator has ended.
func (f *follower) startedOver(ctx context.Context, v view) (bool, error) {
	if v.head.Index == 0 || v.head.Cluster == f.cluster.ID() {
		return false, nil
	}
	// Another host may have been told since this one has started.
	once, cancel := f.call(ctx)
	defer cancel()
	if err := f.cluster.Identify(once, f.o.DataID, true); err != nil {
		return false, err
	}
	return v.head.Cluster != f.cluster.ID(), nil
}
