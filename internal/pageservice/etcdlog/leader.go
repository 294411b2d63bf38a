package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/queue"
)

// leader appends. run, and what it calls, is one goroutine, the committer; look another (snapshots.go), and so are
// await and mark: a shared directory that hangs must not hide that the term is over.
type leader struct {
	appender
	id       string               // of the cluster, since this host leads
	promised pageservice.Promises // by this host and those that led before
	since    time.Duration        // SinceBoot: no other host has promised anything after that
	rewriter *rewriter            // nil: compaction is not under way
	ended    chan struct{}

	name     chan string // a host that is to take a snapshot: the committer writes it down
	naming   atomic.Bool // there is one that it has not written down
	demotion sync.Once
	live     atomic.Int64 // LogOwner.LiveBytes, which only the committer asks
	alone    atomic.Bool  // no follower takes snapshots: the committer compacts

	mu       sync.Mutex
	progress progress
}

// progress is what the committer has done.
type progress struct {
	index    uint64
	chain    chain
	revision int64
	bytes    int64           // of a snapshot and all batches since
	at       map[uint64]mile // by index of checkpoint
	asked    time.Time       // when a host was asked for a snapshot that is to come; zero: none is
	refs     []reference     // newest first; look changes them

	// forgetting: the owner was told that something is missing, and has not written down yet that it has forgotten it.
	forgetting bool
}

func newLeader(f *follower, a *appender, id string, promised pageservice.Promises, forgetting bool) *leader {
	l := &leader{
		appender: *a, id: id, promised: promised, since: host.SinceBoot(), ended: make(chan struct{}), name: make(chan string, 1),
		progress: progress{bytes: f.position.bytes, at: f.position.at, refs: f.refs.Newest, forgetting: forgetting},
	}
	l.live.Store(f.owner.LiveBytes())
	l.appended()
	f.o.Logger.Info("page log: this host leads it", "term", a.term.Revision, "index", a.head.Index)
	l.setState(func(s *State) { s.Role, s.Reason, s.Warm = Leading, "", true })
	return l
}

// appended notes the batch that was appended last.
func (l *leader) appended() {
	l.mu.Lock()
	l.progress.index, l.progress.chain, l.progress.revision = l.head.Index, l.head.Chain, l.revision
	l.progress.bytes += int64(l.bytes)
	l.mu.Unlock()
	l.setState(func(s *State) { s.Applied, s.Head, s.Term = l.head.Index, l.head.Index, l.term.Revision })
}

// sizeBytes returns how much a host that starts now would read, and how much of that since the newest snapshot.
func (p *progress) sizeBytes() (all, since int64) {
	if len(p.refs) == 0 {
		return p.bytes, p.bytes
	}
	newest := p.refs[0]
	if m, ok := p.at[newest.Index]; ok {
		return newest.Bytes + p.bytes - m.bytes, p.bytes - m.bytes
	}
	return p.bytes, p.bytes
}

func (l *leader) sizeBytes() (all, since int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.progress.sizeBytes()
}

// groupTarget is how many bytes of writes are made one group, so that with its frames it is mostly one batch.
const groupTarget = batchBytes * 7 / 8

// run is the committer. One group is under way while the next one fills.
func (l *leader) run() {
	defer close(l.ended)
	defer func() { l.rewriter.close() }()
	idle := time.NewTicker(l.o.Period)
	defer idle.Stop()
	for {
		writes, closed := l.queue.Take(groupTarget)
		if len(writes) > 0 {
			err := l.commit(writes)
			for _, w := range writes {
				w.Finish(err)
			}
			l.live.Store(l.owner.LiveBytes())
			select {
			case host := <-l.name: // however much there is to write
				l.report(l.checkpoint(host))
			default:
			}
			continue
		}
		if closed {
			return
		}
		select {
		case <-l.queue.Wake():
		case host := <-l.name:
			l.report(l.checkpoint(host))
		case <-idle.C:
			if err := l.unmoved(l.ctx); err != nil {
				l.demote(err)
			}
		}
	}
}

// commit appends what is queued and, before it, what compaction keeps.
func (l *leader) commit(writes []*queue.Write) error {
	select {
	case <-l.lost:
		return fmt.Errorf("%w: it was found not to lead", pageservice.ErrDemoted)
	default:
	}
	var group []byte
	bytes := 0
	for _, w := range writes {
		bytes += w.Bytes
	}
	if bytes > groupBytes/2 {
		return fmt.Errorf("%w: %d bytes of records that have to become durable at once", pageservice.ErrInvalid, bytes)
	}
	change := func(h *head) {
		if l.progress.forgetting { // only this goroutine changes it
			h.Cluster = l.id
		}
	}
	var more []clientv3.Op
	dropped := int64(0)
	if l.wasteful() {
		if l.rewriter == nil {
			l.rewriter = newRewriter(l)
		}
		kept, n, err := l.rewriter.some(l.ctx, min(max(4*int64(bytes), leastRewrite), mostRewrite))
		l.report(err)
		for _, rec := range kept {
			group = appendFrame(group, rec)
		}
		if err != nil {
			l.endRewriting() // it has gone past records that it did not return
		} else if whole := l.rewriter.whole; whole > l.head.Whole {
			dropped = n
			before := change
			change = func(h *head) { before(h); h.Whole = whole }
			more = []clientv3.Op{clientv3.OpDelete(l.keys.batch(0), clientv3.WithRange(l.keys.batch(whole)))}
		}
	}
	for _, w := range writes {
		for _, rec := range w.Recs {
			group = appendFrame(group, rec)
		}
	}
	err := l.appendGroup(group, change, more)
	l.report(err)
	if !l.alone.Load() {
		l.endRewriting() // what it points at goes with the next snapshot
	}
	if err != nil {
		l.endRewriting() // what was kept is not in the log
		if errors.Is(err, pageservice.ErrDemoted) {
			l.demote(err)
		}
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress.bytes -= dropped
	for index, m := range l.progress.at {
		m.bytes -= dropped // how much came after it stays the same
		l.progress.at[index] = m
	}
	l.progress.forgetting = false
	return nil
}

// endRewriting has compaction begin again with the oldest record.
func (l *leader) endRewriting() {
	l.rewriter.close()
	l.rewriter = nil
}

// appendGroup appends a group in as many batches as it needs; change and more go with the last.
func (l *leader) appendGroup(group []byte, change func(*head), more []clientv3.Op) error {
	bodies := cut(group)
	for i, body := range bodies {
		b := batch{kind: records, part: uint32(i), last: i == len(bodies)-1, body: body}
		var err error
		if b.last {
			err = l.append(l.ctx, b, change, more...)
		} else {
			err = l.append(l.ctx, b, nil)
		}
		if err != nil {
			return err
		}
		l.appended()
	}
	return nil
}

// checkpoint names a host that is to take a snapshot, at this place of the log.
func (l *leader) checkpoint(host string) error {
	defer l.naming.Store(false)
	err := l.append(l.ctx, batch{kind: checkpoint, last: true, body: []byte(host)}, nil)
	if errors.Is(err, pageservice.ErrDemoted) {
		l.demote(err)
	}
	if err != nil {
		return err
	}
	l.appended()
	l.mu.Lock()
	l.progress.at[l.head.Index] = mile{bytes: l.progress.bytes}
	l.progress.asked = time.Now()
	l.mu.Unlock()
	return nil
}

// demote ends the leadership for this host. Writes fail from then on, as their transactions would.
func (l *leader) demote(why error) {
	l.demotion.Do(func() {
		l.o.Logger.Warn("page log: this host leads it no more", "why", why)
		l.setState(func(s *State) { s.Role, s.Warm, s.Reason = Demoted, false, why.Error() })
		close(l.lost)
	})
}

// valid reports whether this host may answer from memory.
func (l *leader) valid() bool {
	select {
	case <-l.lost:
		return false
	default:
		return l.term.Valid()
	}
}

// finish ends the writes that were queued, and the term.
func (l *leader) finish() {
	ctx, cancel := context.WithTimeout(l.ctx, l.cluster.LeaseTTL())
	defer cancel()
	select {
	case <-l.ended:
	case <-ctx.Done(): // etcd does not answer, or the shared directory
	}
	l.cancel()
	l.resign(l.term)
}

// await demotes this host when its term is over.
func (l *leader) await() {
	select {
	case <-l.ctx.Done():
	case <-l.lost:
	case <-l.term.Lost():
		if l.ctx.Err() == nil { // else the log is being closed
			l.demote(l.term.Reason())
		}
	}
}
