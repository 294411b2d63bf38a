package enginebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

// endless returns n prompts that have arrived already.
func (b *bench) endless(n int, prompt func(i int) []uint32) func() (arrival, bool, error) {
	i := -1
	return func() (arrival, bool, error) {
		if i++; i == n {
			return arrival{}, false, nil
		}
		return arrival{tokens: prompt(i), output: b.o.OutputTokens}, true, nil
	}
}

// Rows of randomTwice.
const (
	firstRun  = "first run"
	secondRun = "second run"
)

// randomTwice runs random prompts twice, as UCM's own bench does: the first time none of
// their blocks is stored, the second time all are.
func (b *bench) randomTwice(ctx context.Context) (err error) {
	b.progress.Expect(2 * b.o.Prompts)
	s, tokens, atOnce := b.subjects[0], b.o.PromptTokens[0], b.o.Concurrency[0]
	ses, err := b.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ses.close(ctx)) }()
	for _, name := range []string{firstRun, secondRun} {
		run, err := ses.stream(ctx, atOnce, b.endless(b.o.Prompts, func(i int) []uint32 {
			return streamOf(ofTwice, b.o.Seed, uint64(i)).appendTo(nil, 0, tokens)
		}))
		ses.addStream(pass{name: name, inputTokens: tokens, atOnce: atOnce}, run)
		if err != nil {
			return err
		}
		if err := ses.engine.store.Flush(ctx); err != nil {
			return fmt.Errorf("bench: flush: %w", err)
		}
	}
	return nil
}

// queryTokens is the number of tokens that a query adds to its group's prefix.
const queryTokens = 128

// sharedPrefix runs the queries of each group, first here and then other queries on a node
// that has nothing in memory.
func (b *bench) sharedPrefix(ctx context.Context) error {
	b.rep.Order, b.rep.Groups, b.rep.Queries = b.o.Order, b.o.Groups, b.o.Queries
	b.progress.Expect(b.o.Groups * b.o.Queries)
	if err := b.queryGroups(ctx); err != nil || b.o.ColdNode == nil || b.o.NoCold {
		return err
	}
	cold, err := b.o.ColdNode(ctx, b.rep.Scale, b.o.Seed)
	if cold != nil {
		b.rep.Rows = append(b.rep.Rows, cold.Rows...)
		b.rep.WrongBytes += cold.WrongBytes
		b.lost.include(cold.Lost)
	}
	return err
}

// Rows of sharedPrefix.
const (
	memoryOnly = "engine memory only"
	warmStore  = "store, warm"
	coldStart  = "store, cold start"
)

func (b *bench) queryGroups(ctx context.Context) (err error) {
	s, prefix, atOnce := b.subjects[0], b.o.PromptTokens[0], b.o.Concurrency[0]
	ses, err := b.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ses.close(ctx)) }()
	group := func(i int) []uint32 { return streamOf(ofGroups, b.o.Seed, uint64(i)).appendTo(nil, 0, prefix) }
	name, node := warmStore, uint64(0)
	if b.o.IsColdNode { // another node has computed the prefixes
		name, node = coldStart, cmp.Or(b.o.Node, 1)
		for i := range b.o.Groups {
			ses.past.add(ses.engine.hash(group(i)))
		}
	}
	order := b.order()
	run, err := ses.stream(ctx, atOnce, b.endless(len(order), func(i int) []uint32 {
		return streamOf(ofQueries, b.o.Seed, node, uint64(i)).appendTo(group(order[i]), 0, queryTokens)
	}))
	p := pass{name: name, inputTokens: prefix + queryTokens, atOnce: atOnce}
	if err == nil && !b.o.IsColdNode {
		b.addMemoryOnly(s, p, run)
	}
	p.tiers = tiersOf(ses.engine.store.Stats())
	ses.addStream(p, run)
	return err
}

// order returns the group of each query.
func (b *bench) order() []int {
	groups := make([]int, b.o.Groups*b.o.Queries)
	for i := range groups {
		groups[i] = i % b.o.Groups
		if b.o.Order == Grouped {
			groups[i] = i / b.o.Queries
		}
	}
	if b.o.Order == Shuffled {
		random := rand.New(rand.NewPCG(b.o.Seed, 0x6b763366))
		random.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
	}
	return groups
}

// addMemoryOnly adds what the same requests would have taken without a store, calculated.
func (b *bench) addMemoryOnly(s *Subject, p pass, run []outcome) {
	memory := b.engineMemory(s)
	if memory == nil {
		return
	}
	b.o.Notice("calculating the same requests without a store")
	p.name, p.calculated = memoryOnly, true
	p.runs = [][]outcome{p.withoutStore(s, run, memory, b.o)}
	p.stream = true
	b.rep.Rows = append(b.rep.Rows, rowOf(s, p, b.o))
}

// trace replays a trace. An id stands for the same tokens everywhere.
func (b *bench) trace(ctx context.Context) (err error) {
	b.rep.Speed = b.o.Speed
	s := b.subjects[0]
	ses, err := b.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ses.close(ctx)) }()
	f, err := os.Open(b.o.TracePath)
	if err != nil {
		return fmt.Errorf("bench: trace: %w", err)
	}
	defer f.Close()
	t := workload.NewReader(f, f.Name())
	atOnce := b.o.Concurrency[0]
	if b.o.Speed > 0 {
		atOnce = 0
	}
	left := b.traced
	run, err := ses.stream(ctx, atOnce, func() (arrival, bool, error) {
		if left == 0 {
			return arrival{}, false, nil
		}
		left--
		r, err := t.Read()
		if err != nil {
			return arrival{}, false, fmt.Errorf("bench: %w", err)
		}
		a := arrival{tokens: expand(r), output: b.o.OutputTokens}
		if b.o.TraceOutput {
			a.output = max(r.OutputTokens, 1)
		}
		if b.o.Speed > 0 {
			a.after = time.Duration(float64(r.Arrival) / b.o.Speed)
		}
		return a, true, nil
	})
	ses.addStream(pass{name: "trace", atOnce: atOnce}, run)
	return err
}

// expand returns the tokens for a request's ids.
func expand(r workload.Request) []uint32 {
	tokens := make([]uint32, 0, r.InputTokens)
	for _, id := range r.Blocks {
		n := min(workload.TokensPerBlock, r.InputTokens-len(tokens))
		tokens = streamOf(ofTrace, id).appendTo(tokens, 0, n)
	}
	return tokens
}

// addStream adds the completed requests of a stream to the report.
func (s *session) addStream(p pass, run []outcome) {
	if len(run) == 0 {
		return
	}
	p.stream, p.runs = true, [][]outcome{run}
	s.add(p)
}
