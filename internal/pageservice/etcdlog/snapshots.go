package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// look is what the leader does beside appending and marking: space in etcd, snapshots, and dropping what they make needless.
func (l *leader) look() {
	k := &lookout{leader: l, waiting: map[int64]time.Time{}}
	tick := time.NewTicker(l.o.Period)
	defer tick.Stop()
	for {
		k.once(l.ctx)
		select {
		case <-l.ctx.Done():
			return
		case <-l.lost:
			return
		case <-tick.C:
		}
	}
}

// lookout is the state of look.
type lookout struct {
	*leader
	spaceAt time.Time
	urgent  bool      // etcd is half full
	cutAt   time.Time // since when most hosts have not reached this one; zero: they do

	shrunk bool // see shrink

	refused int // how many in a row were asked for a snapshot and have not taken one
	turn    int // whose turn it is

	waiting map[int64]time.Time // since when proposals wait, by revision

	refs      snapshots
	refsSeen  int64 // -1: not known
	known     bool
	truncated uint64 // batches before this one are gone
	times     []moment
	compacted int64 // revision
	told      string
}

// moment says which revision etcd had at a time.
type moment struct {
	at       time.Time
	revision int64
}

// askPeriods is for how many periods a host may take a snapshot before another is asked.
const askPeriods = 60

// once looks at everything once. Each part goes on where another one fails.
func (k *lookout) once(ctx context.Context) {
	k.leader.mu.Lock()
	p := k.progress
	_, since := p.sizeBytes()
	k.leader.mu.Unlock()
	k.space(ctx)
	err := errors.Join(
		k.startedOver(ctx),
		k.reached(ctx),
		k.verify(ctx),
		k.ask(ctx, since),
		k.truncate(ctx),
		k.forget(ctx, p.revision),
		k.shrink(ctx),
	)
	if ctx.Err() != nil {
		return
	}
	told := ""
	if err != nil {
		told = err.Error()
	}
	if told != k.told && told != "" {
		k.o.Logger.Warn("page log: the leader cannot do everything that keeps it short and safe", "err", err)
	}
	k.told = told
}

// startedOver gives the lead up when an operator has decided to begin anew: whoever leads next does.
func (k *lookout) startedOver(ctx context.Context) error {
	once, cancel := k.call(ctx)
	defer cancel()
	if err := k.cluster.Identify(once, k.o.DataID, true); err != nil {
		return err
	}
	if k.cluster.ID() != k.id {
		k.demote(errors.New("an operator has decided to begin anew"))
	}
	return nil
}

// cutTerms is for how many lease times most hosts must say that they do not reach the leader.
const cutTerms = 2

// reached gives the lead up if most other hosts do not reach this one, and one of them may be reached.
func (k *lookout) reached(ctx context.Context) error {
	hosts, err := k.cluster.Hosts(ctx)
	if err != nil {
		return err
	}
	others, cut := 0, []string{}
	for _, h := range hosts {
		if h.ID == k.by.Host || h.Role != string(Following) {
			continue
		}
		others++
		if h.Cut == k.term.Revision {
			cut = append(cut, h.ID)
		}
	}
	if 2*len(cut) <= others {
		k.cutAt = time.Time{}
		return nil
	}
	if k.cutAt.IsZero() {
		k.cutAt = time.Now()
	}
	if time.Since(k.cutAt) < cutTerms*k.cluster.LeaseTTL() {
		return nil
	}
	contested, err := k.term.Contested(ctx)
	if err != nil || !contested {
		return err
	}
	rest := k.cluster.Rest()
	k.demote(fmt.Errorf("hosts %s do not reach it: another leads, and this one is no candidate for %v: look at --pages-peer-address, tokens, certificates and the network", strings.Join(cut, ", "), rest))
	return nil
}

// verify looks at the snapshots that followers have taken, and moves the pointer to them.
func (k *lookout) verify(ctx context.Context) error {
	if !k.known {
		v, err := k.view(ctx)
		if err != nil {
			return err
		}
		k.setRefs(v.refs, v.refsSeen)
		k.known, k.truncated = true, v.first()
	}
	answer, err := k.get(ctx, k.keys.proposed(), 0, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	var errs []error
	for _, kv := range answer.Kvs {
		errs = append(errs, k.judge(ctx, kv))
	}
	return errors.Join(errs...)
}

// judge accepts a snapshot that was proposed, or refuses it.
func (k *lookout) judge(ctx context.Context, kv *mvccpb.KeyValue) error {
	p, err := decodeProposal(string(kv.Key), kv.Value)
	if err == nil {
		err = k.examine(ctx, p.Snapshot, kv)
	}
	refused := err != nil
	if err == nil {
		err = k.accept(ctx, p.Snapshot)
	}
	done := err == nil || errors.Is(err, pageservice.ErrCorrupt) || k.waited(kv)
	var errs []error
	if err != nil && !errors.Is(err, errToCome) && ctx.Err() == nil {
		errs = append(errs, fmt.Errorf("snapshot %s: %w", kv.Key, err))
	}
	if !done {
		return errors.Join(errs...)
	}
	// Unless the host has taken another one meanwhile. Another leader may have accepted what this one refuses: then the fence fails.
	_, err = k.fenced(ctx, clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision), clientv3.OpDelete(string(kv.Key)))
	if err == nil {
		delete(k.waiting, kv.ModRevision)
		if refused && k.known {
			err = k.removeRefused(p.Snapshot)
		}
	}
	if err != nil && !errors.Is(err, errFenced) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeRefused removes the file of a snapshot that is none: hosts that disagree would fill the directory.
func (k *lookout) removeRefused(r reference) error {
	if !strings.HasPrefix(r.File, k.id+"-") || slices.ContainsFunc(k.refs.Newest, func(kept reference) bool { return kept.File == r.File }) {
		return nil
	}
	err := os.Remove(filepath.Join(k.snapshotDir(), r.File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// proposalTerms is for how many lease times a snapshot waits for other hosts' states, or to be readable.
const proposalTerms = 3

// waited reports whether a proposal has waited for long enough.
func (k *lookout) waited(kv *mvccpb.KeyValue) bool {
	since, waits := k.waiting[kv.ModRevision]
	if !waits {
		since = time.Now()
		k.waiting[kv.ModRevision] = since
	}
	return time.Since(since) > proposalTerms*k.cluster.LeaseTTL()
}

// errToCome: other hosts have not got to where a snapshot was taken.
var errToCome = errors.New("other hosts have not said what they have there")

// agree returns an error if another host has, or may have, another state than the snapshot at its index. Which of them is right nobody
// can tell, and all would begin again from it: so there is no snapshot.
func (k *lookout) agree(ctx context.Context, r reference, key *mvccpb.KeyValue) error {
	hosts, err := k.cluster.Hosts(ctx)
	if err != nil {
		return err
	}
	toCome := false
	for _, h := range hosts {
		if h.ID == r.Host || h.Version != r.Version || h.Role != string(Following) || h.Epoch != r.Epoch && h.Epoch != 0 {
			continue
		}
		if h.Checkpoint == r.Index && h.Hash != 0 && h.Hash != r.State {
			err := damaged("at batch %d host %q, which took it, has state %x, and host %q has %x: the memory of one of them is wrong, or they have a defect: no snapshot is taken until both were restarted", r.Index, r.Host, r.State, h.ID, h.Hash)
			k.o.Logger.Error("page log: hosts disagree about the page index", "err", err)
			k.setState(func(s *State) { s.Conflict = err.Error() })
			return err
		}
		toCome = toCome || h.Checkpoint < r.Index
	}
	if toCome && !k.waited(key) {
		return errToCome
	}
	return nil
}

func (k *lookout) setRefs(refs snapshots, seen int64) {
	k.refs, k.refsSeen = refs, seen
	k.leader.mu.Lock()
	defer k.leader.mu.Unlock()
	k.progress.refs = refs.Newest
	for index := range k.progress.at {
		if len(refs.Newest) > 0 && index < refs.Newest[len(refs.Newest)-1].Index {
			delete(k.progress.at, index)
		}
	}
}

// late reports whether a snapshot is no newer than what there is: it is of an earlier leader's time, perhaps.
func (k *lookout) late(r reference) bool {
	return len(k.refs.Newest) > 0 && r.Index <= k.refs.Newest[0].Index
}

// examine returns what speaks against a snapshot.
func (k *lookout) examine(ctx context.Context, r reference, key *mvccpb.KeyValue) error {
	if k.late(r) {
		return nil
	}
	values, err := k.fetch(ctx, r.Index, r.Index)
	if errors.Is(err, errGap) {
		return damaged("the log has no batch %d", r.Index)
	}
	if err != nil {
		return err
	}
	_, sum, err := decodeBatch(values[0])
	if err != nil || sum != r.Chain {
		return damaged("it is of another log: batch %d has chain %v", r.Index, sum)
	}
	if err := k.agree(ctx, r, key); err != nil {
		return err
	}
	return readSnapshot(k.snapshotDir(), k.cluster.ID(), r, func([]byte) error { return ctx.Err() })
}

// accept moves the pointer to a snapshot, under the fence. After an error that may have been done.
func (k *lookout) accept(ctx context.Context, r reference) error {
	if k.late(r) {
		return nil
	}
	next := snapshots{stamp{jsonFormat, k.by}, append([]reference{r}, k.refs.Newest...)}
	next.Newest = next.Newest[:min(len(next.Newest), keptSnapshots)]
	answer, err := k.fenced(ctx, clientv3.Compare(clientv3.ModRevision(k.keys.snapshots()), "=", k.refsSeen), clientv3.OpPut(k.keys.snapshots(), encodeJSON(next)))
	if err != nil {
		k.known = false
		return err
	}
	k.setRefs(next, answer.Header.Revision)
	k.refused = 0
	k.setState(func(s *State) { s.Conflict = "" })
	k.setAsked(time.Time{})
	k.o.Logger.Info("page log: snapshot verified", "index", r.Index, "host", r.Host, "bytes", r.Bytes)
	return nil
}

// fenced runs a transaction of this term.
func (k *lookout) fenced(ctx context.Context, also clientv3.Cmp, then ...clientv3.Op) (*clientv3.TxnResponse, error) {
	once, cancel := k.call(ctx)
	defer cancel()
	answer, err := k.cluster.Client().Txn(once).If(k.term.Fence(), also).Then(then...).Commit()
	if err == nil && !answer.Succeeded {
		err = errFenced
	}
	return answer, err
}

var errFenced = errors.New("this host leads no more, or another has written meanwhile")

// setAsked notes when a host was asked for a snapshot.
func (k *lookout) setAsked(at time.Time) {
	k.leader.mu.Lock()
	defer k.leader.mu.Unlock()
	k.progress.asked = at
}

// ask has a follower take a snapshot if one is due, or compaction done where there is none.
func (k *lookout) ask(ctx context.Context, since int64) error {
	due := max(k.o.SnapshotBytes, k.live.Load()/2)
	if k.urgent {
		due = k.o.SnapshotBytes / 8
	}
	if since < due {
		return nil
	}
	if k.naming.Load() {
		return nil
	}
	k.leader.mu.Lock()
	asked := k.progress.asked // since nobody is being named any more
	k.leader.mu.Unlock()
	if !asked.IsZero() && time.Since(asked) < askPeriods*k.o.Period {
		return nil
	}
	hosts, err := k.cluster.Hosts(ctx)
	if err != nil {
		return err
	}
	var followers []string
	for _, h := range hosts {
		if h.ID != k.by.Host && h.Role == string(Following) {
			followers = append(followers, h.ID)
		}
	}
	if !asked.IsZero() {
		k.refused++
		k.setAsked(time.Time{})
	}
	k.alone.Store(len(followers) == 0 || k.refused > 2*len(followers))
	if len(followers) == 0 {
		return nil
	}
	k.naming.Store(true)
	k.name <- followers[k.turn%len(followers)] // there is room: the last one was taken out
	k.turn++
	return nil
}

// truncateBatches is how many batches are dropped at once.
const truncateBatches = 500

// truncate drops the batches before the older of two snapshots.
func (k *lookout) truncate(ctx context.Context) error {
	if len(k.refs.Newest) < keptSnapshots {
		return nil
	}
	oldest := k.refs.Newest[keptSnapshots-1]
	if k.truncated > oldest.Index {
		return nil
	}
	for k.truncated <= oldest.Index {
		to := min(k.truncated+truncateBatches, oldest.Index+1)
		drop := clientv3.OpDelete(k.keys.batch(0), clientv3.WithRange(k.keys.batch(to)))
		_, err := k.fenced(ctx, k.term.Fence(), drop)
		if errors.Is(err, rpctypes.ErrNoSpace) && k.valid() {
			// A full etcd 3.4 takes no transactions. What is before a snapshot that was the older of two is needed by nobody
			// ever after, whoever leads: indices do not come again.
			once, cancel := k.call(ctx)
			_, err = k.cluster.Client().Do(once, drop)
			cancel()
		}
		if err != nil {
			return err
		}
		k.truncated = to
	}
	return removeSnapshots(k.snapshotDir(), k.cluster.ID(), oldest.Index, k.refs.Newest)
}

// forget has etcd give up what was dropped some time ago.
func (k *lookout) forget(ctx context.Context, revision int64) error {
	now := time.Now()
	history := k.o.History
	if k.urgent {
		history = min(history, 10*k.o.Period)
	}
	step := max(k.o.Period, history/8)
	if n := len(k.times); n == 0 || now.Sub(k.times[n-1].at) >= step {
		k.times = append(k.times, moment{now, revision})
	}
	old := int64(0)
	for len(k.times) > 0 && now.Sub(k.times[0].at) >= history {
		old = k.times[0].revision
		k.times = k.times[1:]
	}
	if old <= k.compacted {
		return nil
	}
	once, cancel := k.call(ctx)
	defer cancel()
	if _, err := k.cluster.Client().Compact(once, old); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("etcd: compact: %w", err)
	}
	k.compacted = old
	return nil
}
