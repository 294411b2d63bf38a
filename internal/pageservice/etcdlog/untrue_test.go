package etcdlog

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// TestUntrueEtcd are the tests of a host whose etcd tells it what was true once, or nothing, as known faults of etcd 3.4 do: no step trusts a read or a
// watch. (That none trusts a lease, the tests of package cluster show.)
func TestUntrueEtcd(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{})
	for name, test := range map[string]func(*site){
		"a host that reads the past does not lead with it":                    testReadsThePast,
		"a leader that reads the past goes on":                                testLeaderReadsThePast,
		"a host that is told of no change follows through all leaders #13174": testToldOfNothing,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newSite(t, members))
		})
	}
}

// past answers reads of the log with what was true at a revision, as a member does that was paused and does not know it.
type past struct {
	clientv3.KV
	prefixes []string

	mu     sync.Mutex
	at     int64 // 0: with what is true
	reads  int   // that were answered so
	failed int   // transactions whose comparisons failed
}

// inThePast makes a host's log whose reads can be made to be of the past.
func (s *site) inThePast(name string) (*peer, *past) {
	s.Helper()
	c := s.join(name)
	k := keys{s.prefix}
	p := &past{KV: c.Client().KV, prefixes: []string{k.head(), k.log(), k.snapshots(), k.promises()}}
	c.Client().KV = p
	return s.prepare(c), p
}

// freeze has what is true now be what is read from now on.
func (p *past) freeze(s *site) {
	s.Helper()
	now, err := p.KV.Get(s.Context(), p.prefixes[0])
	if err != nil {
		s.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.reads, p.failed = now.Header.Revision, 0, 0
}

func (p *past) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = 0
}

func (p *past) counts() (reads, failed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reads, p.failed
}

// Get answers from the past only where no revision is asked for: no member has a revision that it does not know of.
func (p *past) Get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	p.mu.Lock()
	at := p.at
	if clientv3.OpGet(key, options...).Rev() != 0 || !slices.ContainsFunc(p.prefixes, func(of string) bool { return strings.HasPrefix(key, of) }) {
		at = 0
	}
	if at > 0 {
		p.reads++
	}
	p.mu.Unlock()
	if at == 0 {
		return p.KV.Get(ctx, key, options...)
	}
	answer, err := p.KV.Get(ctx, key, append(options, clientv3.WithRev(at))...)
	if err == nil {
		answer.Header.Revision = at
	}
	return answer, err
}

func (p *past) Txn(ctx context.Context) clientv3.Txn { return &counted{p.KV.Txn(ctx), p} }

// counted is a transaction that counts whether its comparisons fail.
type counted struct {
	clientv3.Txn
	p *past
}

func (t *counted) If(ifs ...clientv3.Cmp) clientv3.Txn  { t.Txn = t.Txn.If(ifs...); return t }
func (t *counted) Then(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(ops...); return t }
func (t *counted) Else(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(ops...); return t }
func (t *counted) Commit() (*clientv3.TxnResponse, error) {
	answer, err := t.Txn.Commit()
	if err == nil && !answer.Succeeded {
		t.p.mu.Lock()
		t.p.failed++
		t.p.mu.Unlock()
	}
	return answer, err
}

func testReadsThePast(s *site) {
	a := s.lead("a")
	a.mustWrite("1")
	s.o.Dir = s.TempDir() // without the leader's mark, which tells, too
	b, p := s.inThePast("b")
	b.run()
	b.applies("1")
	s.stands("b", 2)
	p.freeze(s)
	a.mustWrite("2")
	a.die()
	await(s, "it tries to lead", func() bool { _, failed := p.counts(); return failed >= 3 })
	select {
	case err := <-b.started:
		s.Fatal("it leads without all that was written: ", err)
	default:
	}
	if b.Valid() || b.State().Role == Leading {
		s.Errorf("%+v", b.State())
	}
	p.thaw()
	b.leads()
	b.mustWrite("3")
	b.applies("1", "2", "3")
}

func testLeaderReadsThePast(s *site) {
	a, p := s.inThePast("a")
	a.run()
	a.leads()
	b := s.follow("b")
	p.freeze(s)
	a.mustWrite("1")
	await(s, "it has looked at the past", func() bool { reads, _ := p.counts(); return reads >= 20 })
	if !a.Valid() || a.State().Role != Leading {
		s.Errorf("%+v", a.State())
	}
	a.mustWrite("2")
	b.applies("1", "2")
}

// deaf is a watcher that is told of nothing.
type deaf struct{ clientv3.Watcher }

func (deaf) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	nothing := make(chan clientv3.WatchResponse)
	context.AfterFunc(ctx, func() { close(nothing) })
	return nothing
}

// A router of Dynamo that was fed by events could not rebuild its index after a change of leaders.
func testToldOfNothing(s *site) {
	c := s.join("b")
	c.Client().Watcher = deaf{c.Client().Watcher}
	b := s.startOn(c)
	b.leads()
	b.mustWrite("0")
	if err := b.Close(); err != nil {
		s.Fatal(err)
	}
	a := s.lead("a")
	b = s.startOn(c)
	a.mustWrite("1")
	b.applies("0", "1")
	s.stands("b", 2)
	other := s.follow("c")
	s.stands("c", 3)
	if err := b.Close(); err != nil { // else it is next
		s.Fatal(err)
	}
	b = s.startOn(c)
	s.stands("b", 3)
	a.die()
	other.leads()
	other.mustWrite("2")
	b.applies("0", "1", "2")
	other.die()
	b.leads()
	b.mustWrite("3")
	b.applies("0", "1", "2", "3")
}
