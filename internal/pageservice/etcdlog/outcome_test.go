package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// TestOutcomes are the tests of appends that are cut off in the middle.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{})
	for name, test := range map[string]func(*site){
		"a request that is lost is sent again":             testRequestIsLost,
		"an append whose answer is lost was done once":     testAnswerIsLost,
		"a leader that dies before its request arrives":    testDiesBeforeRequest,
		"a leader that dies before the answer arrives":     testDiesBeforeAnswer,
		"a leader that dies anywhere in a group":           testDiesAnywhere,
		"a request that arrives after its term is refused": testLateRequest,
		"a leader that is cut off is demoted and closes":   testCutOff,
		"what is called clear cannot succeed any more":     testLateAttempt,
		"a gate that moves unheard is no other appender":   testLateGate,
		"what is not clear is logged":                      testNeverClear,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newSite(t, members))
		})
	}
}

// throughProxy makes a host lead whose only way to etcd is a proxy.
func (s *site) throughProxy(name string) (*peer, *proxy) {
	s.Helper()
	p := newProxy(s, s.members.Endpoints()[0])
	return s.lead(name, p.address()), p
}

// logged returns the records that etcd has, by another host's eyes.
func (s *site) logged() []string {
	s.Helper()
	return s.follow(fmt.Sprintf("reader%d", rand.Uint64())).owner.all()
}

func testRequestIsLost(s *site) {
	a, p := s.throughProxy("a")
	lost := p.lose(&p.requests, 0)
	wait := a.begin("1")
	receive(s, "a request is lost", lost)
	if got := s.logged(); len(got) > 0 {
		s.Error(got)
	}
	p.heal()
	if err := waitFor(wait); err != nil {
		s.Fatal(err)
	}
	a.mustWrite("2")
	if got := s.logged(); !slices.Equal(got, []string{"1", "2"}) {
		s.Error(got)
	}
}

func waitFor(wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return wait(ctx)
}

func testAnswerIsLost(s *site) {
	a, p := s.throughProxy("a")
	b := s.follow("b")
	p.lose(&p.answers, 0)
	wait := a.begin("1")
	b.applies("1")
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := wait(ended); !errors.Is(err, context.Canceled) {
		s.Fatal("an outcome that nobody can know:", err)
	}
	p.heal()
	if err := waitFor(wait); err != nil {
		s.Fatal(err)
	}
	a.mustWrite("2")
	b.applies("1", "2")
}

func testDiesBeforeRequest(s *site) {
	s.ttl = shortLease
	a, p := s.throughProxy("a")
	b := s.follow("b")
	a.mustWrite("0")
	lost := p.lose(&p.requests, 0)
	a.begin("1")
	receive(s, "a request is lost", lost)
	a.die()
	b.leads()
	b.mustWrite("2")
	b.applies("0", "2")
}

func testDiesBeforeAnswer(s *site) {
	s.ttl = shortLease
	a, p := s.throughProxy("a")
	b := s.follow("b")
	p.lose(&p.answers, 0)
	a.begin("1")
	b.applies("1")
	a.die()
	b.leads()
	b.mustWrite("2")
	if got := s.logged(); !slices.Equal(got, []string{"1", "2"}) {
		s.Error(got)
	}
}

// A group of several batches, whose leader dies after any number of bytes, is there as a whole or not at all.
func testDiesAnywhere(s *site) {
	s.ttl = shortLease
	rng := rand.New(rand.NewPCG(seed.New(s), 0))
	rounds := 6
	if os.Getenv("KV3FS_SOAK") != "" {
		rounds = 100
	}
	var group []string
	for i := range 4 {
		group = append(group, fmt.Sprint(i, strings.Repeat("x", 200_000)))
	}
	var want []string
	follower := s.follow("b")
	follower.leads()
	for round := range rounds {
		if err := follower.Close(); err != nil {
			s.Fatal(err)
		}
		a, p := s.throughProxy(fmt.Sprint("a", round))
		a.applies(want...)
		follower = s.follow(fmt.Sprint("b", round))
		gate := &p.requests
		if rng.IntN(2) == 0 {
			gate = &p.answers
		}
		after := rng.IntN(900_000)
		if gate == &p.answers {
			after %= 500
		}
		lost := p.lose(gate, after)
		wait := a.begin(group...)
		done := make(chan error, 1)
		go func() { done <- waitFor(wait) }()
		select {
		case <-lost:
		case err := <-done: // fewer bytes were needed
			if err != nil {
				s.Fatal(err)
			}
			done <- nil
		case <-time.After(patience):
			s.Fatal("nothing happens")
		}
		a.die()
		follower.leads()
		got := follower.owner.all()
		switch len(got) - len(want) {
		case len(group):
			want = append(want, group...)
		case 0:
		}
		if !slices.Equal(got, want) {
			s.Fatalf("%d records after %d", len(got), len(want))
		}
		p.heal()
		if err := receive(s, "the outcome", done); err == nil && !slices.Equal(want[max(0, len(want)-len(group)):], group) {
			s.Fatal("an acknowledged group is not there")
		} else if err != nil && !errors.Is(err, pageservice.ErrDemoted) {
			s.Fatal(err)
		}
	}
}

// The request of a leader that has been replaced arrives late.
func testLateRequest(s *site) {
	s.ttl = shortLease
	a := s.lead("a")
	b := s.follow("b")
	led := a.leaderOf()
	a.mustWrite("1")
	a.die()
	b.leads()
	late := &appender{Log: a.Log, term: led.term, head: led.head, seen: led.seen, gate: led.gate}
	err := late.append(s.Context(), batch{kind: records, last: true, body: appendFrame(nil, []byte("late"))}, nil)
	if !errors.Is(err, pageservice.ErrDemoted) {
		s.Fatal(err)
	}
	b.mustWrite("2")
	b.applies("1", "2")
}

func testCutOff(s *site) {
	s.ttl = shortLease
	a, p := s.throughProxy("a")
	b := s.follow("b")
	a.mustWrite("1")
	p.lose(&p.requests, 0)
	p.lose(&p.answers, 0)
	wait := a.begin("2")
	await(s, "it answers nothing from memory", func() bool { return !a.Valid() })
	b.leads() // when the lease has run out
	b.mustWrite("3")
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	if err := waitFor(wait); !errors.Is(err, pageservice.ErrDemoted) {
		s.Error(err)
	}
	p.heal()
	b.applies("1", "3")
}
