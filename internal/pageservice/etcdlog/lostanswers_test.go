package etcdlog

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// network is what a host's transactions go through. It does with those that put a key, and with what deletes the gate, what it is told, one after the
// other; all others, and those afterwards, go to etcd.
type network struct {
	clientv3.KV

	mu    sync.Mutex
	key   string
	fates []fate
	close []fate                                  // of the gate's deletion
	late  []func() (*clientv3.TxnResponse, error) // those that are still under way
}

type fate int

const (
	stuck   fate = iota // in the socket of a member that is stopped: the deadline passes
	full                // answered: etcd has no space
	unheard             // done, but the answer is lost
)

// through makes a host lead whose transactions go through a network.
func (s *site) through(name string) (*peer, *network) {
	s.Helper()
	c := s.join(name)
	n := &network{KV: c.Client().KV}
	c.Client().KV = n
	h := s.startOn(c)
	h.leads()
	return h, n
}

func (n *network) next(key string, fates ...fate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.key, n.fates = key, fates
}

// closes says what happens to the next deletions of the gate.
func (n *network) closes(fates ...fate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.close = fates
}

func (n *network) Delete(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	n.mu.Lock()
	if len(n.close) == 0 || !strings.HasSuffix(key, "/gate") {
		n.mu.Unlock()
		return n.KV.Delete(ctx, key, options...)
	}
	what := n.close[0]
	n.close = n.close[1:]
	n.mu.Unlock()
	if what == unheard {
		if _, err := n.KV.Delete(ctx, key, options...); err != nil {
			return nil, err
		}
	}
	return nil, context.DeadlineExceeded
}

func (n *network) Txn(ctx context.Context) clientv3.Txn {
	return &sent{Txn: n.KV.Txn(ctx), n: n, again: func() clientv3.Txn { return n.KV.Txn(context.Background()) }}
}

// sent is one transaction.
type sent struct {
	clientv3.Txn
	n     *network
	again func() clientv3.Txn
	ifs   []clientv3.Cmp
	thens []clientv3.Op
}

func (t *sent) If(ifs ...clientv3.Cmp) clientv3.Txn {
	t.ifs = ifs
	t.Txn = t.Txn.If(ifs...)
	return t
}

func (t *sent) Then(ops ...clientv3.Op) clientv3.Txn {
	t.thens = ops
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *sent) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *sent) Commit() (*clientv3.TxnResponse, error) {
	t.n.mu.Lock()
	mine := len(t.n.fates) > 0 && len(t.thens) > 0 && t.thens[0].IsPut() && strings.HasPrefix(string(t.thens[0].KeyBytes()), t.n.key)
	if !mine {
		t.n.mu.Unlock()
		return t.Txn.Commit()
	}
	what := t.n.fates[0]
	t.n.fates = t.n.fates[1:]
	if what == stuck {
		t.n.late = append(t.n.late, func() (*clientv3.TxnResponse, error) { return t.again().If(t.ifs...).Then(t.thens...).Commit() })
	}
	t.n.mu.Unlock()
	switch what {
	case stuck:
		return nil, context.DeadlineExceeded
	case unheard:
		if _, err := t.Txn.Commit(); err != nil {
			return nil, err
		}
		return nil, context.DeadlineExceeded
	}
	return nil, rpctypes.ErrNoSpace
}

// arrive has what was stuck arrive after all, and returns how many of it succeeded.
func (n *network) arrive(s *site) (succeeded int) {
	s.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, do := range n.late {
		answer, err := do()
		if err != nil {
			s.Fatal(err)
		}
		if answer.Succeeded {
			succeeded++
		}
	}
	n.late = nil
	return succeeded
}

// An attempt lies in the socket of a member that is stopped, the next one is refused. If the write is said not to have been done,
// the first must not do it.
func testLateAttempt(s *site) {
	a, n := s.through("a")
	b := s.follow("b")
	a.mustWrite("1")
	n.next(a.keys.log(), stuck, full)
	err := a.write("2")
	if err == nil || errors.Is(err, pageservice.ErrDemoted) || !strings.Contains(err.Error(), "space") {
		s.Fatal(err)
	}
	if n.arrive(s) != 0 {
		s.Error("a write that was said to have failed was done")
	}
	a.mustWrite("3")
	b.applies("1", "3")
}

// Where even the gate's closing and opening has to be sent again, an outcome is told only when there is one.
func testLateGate(s *site) {
	a, n := s.through("a")
	b := s.follow("b")
	a.mustWrite("1")
	n.next(a.keys.log(), stuck, full)
	n.closes(unheard)
	if err := a.write("2"); err != nil {
		s.Fatal(err) // it was sent again when nothing stood against it
	}
	if n.arrive(s) != 0 {
		s.Error("something was done twice")
	}
	n.next(s.prefix, full, unheard, stuck) // append, and the next one's gate twice
	if err := a.write("lost"); err == nil || errors.Is(err, pageservice.ErrDemoted) {
		s.Fatal(err)
	}
	a.mustWrite("3")
	if n.arrive(s) != 1 {
		s.Fatal("want the gate opened under the leader's hands")
	}
	a.mustWrite("4")
	b.applies("1", "2", "3", "4")
	if !a.Valid() || a.State().Role != Leading {
		s.Errorf("%+v", a.State())
	}
}

// Where nothing can make an outcome clear, writes wait until something does, and the log says so.
func testNeverClear(s *site) {
	said := &said{}
	s.o.Logger = slog.New(slog.NewTextHandler(said, nil))
	a, n := s.through("a")
	n.next(a.keys.log(), stuck, full)
	n.closes(stuck)
	wait := a.begin("1")
	await(s, "it is logged", func() bool { return said.has("writes wait until it is") })
	if err := waitFor(wait); err != nil {
		s.Fatal(err)
	}
	if n.arrive(s) != 0 {
		s.Error("it was done twice")
	}
	s.follow("b").applies("1")
}

// said is what was logged.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *said) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *said) has(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(w.text.String(), text)
}
