package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// states are hashes of what hosts made of the log, by host and by checkpoint.
type states struct {
	mu   sync.Mutex
	all  map[uint64]map[string]uint64
	bad  error
	both int // checkpoints that two hosts have passed
}

func (s *states) note(host string, applied, hash uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hosts := s.all[applied]
	if hosts == nil {
		hosts = map[string]uint64{}
		s.all[applied] = hosts
	}
	for other, h := range hosts {
		if h != hash {
			s.bad = errors.Join(s.bad, fmt.Errorf("at batch %d host %s has state %x, and host %s %x", applied, host, hash, other, h))
		}
	}
	if hosts[host] = hash; len(hosts) == 2 {
		s.both++
	}
}

func (s *states) compared() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.both, s.bad
}

// notedLog is a log that notes the state at every checkpoint.
type notedLog struct {
	*Log
	states *states
}

func (l *notedLog) Start(owner pageservice.LogOwner) error {
	replay, hash, before := owner.Replay, owner.StateHash, uint64(0)
	owner.Replay = func(rec []byte) error {
		before = l.State().Applied
		return replay(rec)
	}
	owner.StateHash = func() uint64 {
		h := hash()
		if applied := l.State().Applied; applied != before { // else it is that of a snapshot that was just loaded
			l.states.note(l.cluster.Host().ID, applied, h)
		}
		return h
	}
	return l.Log.Start(owner)
}

// sameHost is a host with an index.
type sameHost struct {
	log   *notedLog
	x     *index.Index // once it leads
	leads chan error
	close func() error
}

func (s *site) startIndex(name string, noted *states) *sameHost {
	s.Helper()
	c := s.join(name)
	h := &sameHost{log: &notedLog{New(c, s.o), noted}, leads: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		_ = c.Announce(ctx, func() cluster.State { // until ctx ends
			st := h.log.State()
			return cluster.State{Role: string(st.Role), Applied: st.Applied}
		})
	})
	running.Go(func() {
		o := index.Options{Handover: s.ttl}
		o.Options = pageservice.Options{Lease: 40 * time.Millisecond, Hold: time.Millisecond, Reserve: 40 * time.Millisecond, Quarantine: 10 * time.Millisecond, Free: 0.05}
		x, err := index.Open(h.log, o)
		h.x = x
		h.leads <- err
	})
	h.close = sync.OnceValue(func() error {
		cancel()
		err := h.log.Close()
		running.Wait()
		return err
	})
	s.Cleanup(func() {
		if err := h.close(); err != nil {
			s.Error(err)
		}
	})
	return h
}

// keysOf returns the page of each key on each rank.
func keysOf(t *testing.T, x *index.Index, spaces []pageservice.Space) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	for _, space := range spaces {
		entries, err := x.List(t.Context(), space, "", 10000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			for rank, page := range e.Pages {
				all[fmt.Sprintf("%v rank %d %q", space, rank, e.Key)] = page
			}
		}
	}
	return all
}

// Three hosts over real members of etcd: one leads, whose clients do everything at random, and the others follow, take snapshots and
// begin with them. At each checkpoint of the log all that pass it know the same, and whoever leads next has every confirmed key.
func TestHostsKnowTheSame(t *testing.T) {
	t.Parallel()
	site := newSite(t, etcd.Start(t, etcd.Options{}))
	site.o.SnapshotBytes, site.o.Period = 8<<10, 20*time.Millisecond
	rng := rand.New(rand.NewPCG(seed.New(t), 1))
	noted := &states{all: map[uint64]map[string]uint64{}}
	hosts := map[string]*sameHost{}
	for _, name := range []string{"a", "b", "c"} {
		hosts[name] = site.startIndex(name, noted)
	}
	spaces := []pageservice.Space{{Set: pageservice.VLLM}, {Namespace: "n", Set: pageservice.VLLM}, {Set: "sglang/kv/0"}}
	before := map[string]int64{}
	for term, want := range []int{3, 6, 9} {
		var name string
		var leader *sameHost
		await(t, "a host leads", func() bool {
			for n, h := range hosts {
				select {
				case err := <-h.leads:
					if err != nil {
						t.Fatal(err)
					}
					name, leader = n, h
					return true
				default:
				}
			}
			return false
		})
		now := keysOf(t, leader.x, spaces)
		for key, page := range before {
			if at, ok := now[key]; !ok || at != page {
				t.Errorf("term %d: %s was at page %d and is at %d, known %t", term, key, page, at, ok)
			}
		}
		x := leader.x
		await(t, fmt.Sprintf("%d checkpoints are compared", want), func() bool {
			for range 50 {
				if err := anything(t.Context(), x, rng, spaces[rng.IntN(len(spaces))]); err != nil {
					t.Fatal(err)
				}
			}
			n, err := noted.compared()
			if err != nil {
				t.Fatal(err)
			}
			return n >= want
		})
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		before = keysOf(t, x, spaces)
		if _, err := site.members.Client().Delete(t.Context(), leader.log.leaderOf().term.Key); err != nil {
			t.Fatal(err)
		}
		if err := leader.close(); err != nil {
			t.Fatal(err)
		}
		hosts[name] = site.startIndex(name, noted)
	}
}

// anything does one thing that a client or an operator may do.
func anything(ctx context.Context, x *index.Index, rng *rand.Rand, space pageservice.Space) error {
	rank := rng.IntN(2)
	var keys []string
	for range 1 + rng.IntN(20) {
		keys = append(keys, fmt.Sprintf("key %d", rng.IntN(300)))
	}
	var err error
	switch n := rng.IntN(100); {
	case n < 80:
		var grants []pageservice.Grant
		if grants, err = x.Reserve(ctx, space, rank, keys, false); err != nil {
			break
		}
		var written []pageservice.Placed
		var release []int64
		for i, g := range grants {
			switch {
			case g.Page == pageservice.None || g.Present:
			case rng.IntN(8) == 0:
				release = append(release, g.Page)
			case rng.IntN(8) > 0:
				written = append(written, pageservice.Placed{Key: keys[i], Page: g.Page})
			}
		}
		_, err = x.Confirm(ctx, space, rank, written, release)
	case n < 86:
		_, err = x.Locate(ctx, space, rank, keys)
	case n < 90:
		_, err = x.Delete(ctx, space, keys)
	case n < 93:
		_, err = x.Evict(ctx, space, rng.IntN(20))
	case n < 94:
		err = x.Clear(ctx, space)
	case n < 95:
		if err = x.GiveUp(ctx, space, rank); errors.Is(err, pageservice.ErrInUse) {
			err = nil
		}
	case n < 96:
		err = x.Forget(ctx, space, rank)
	default:
		_, err = x.Initialize(ctx, space, rank, pageservice.RankOptions{NumPages: int64(100 + rng.IntN(2))})
	}
	if errors.Is(err, pageservice.ErrUnknownRank) {
		_, err = x.Initialize(ctx, space, rank, pageservice.RankOptions{NumPages: 100})
	}
	return err
}
