package enginebench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

// endless returns n prompts that have arrived already.
func endless(n int, prompt func(i int) []uint32) func() (arrival, bool, error) {
	i := -1
	return func() (arrival, bool, error) {
		if i++; i == n {
			return arrival{}, false, nil
		}
		return arrival{tokens: prompt(i)}, true, nil
	}
}

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
	for _, name := range []string{"first pass", "second pass"} {
		run, err := ses.stream(ctx, atOnce, endless(b.o.Prompts, func(i int) []uint32 {
			return streamOf(ofTwice, b.o.Salt, uint64(i)).appendTo(nil, 0, tokens)
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

// sharedPrefix runs the queries of each group in random order, first here and then other
// queries on a node that has nothing in memory.
func (b *bench) sharedPrefix(ctx context.Context) error {
	b.progress.Expect(b.o.Groups * b.o.Queries)
	name := "first node"
	if b.o.IsColdNode {
		name = "cold node"
	}
	if err := b.queryGroups(ctx, name); err != nil || b.o.ColdNode == nil {
		return err
	}
	cold, err := b.o.ColdNode(ctx, b.rep.Scale, b.o.Salt)
	if cold != nil {
		b.rep.Rows = append(b.rep.Rows, cold.Rows...)
		b.rep.WrongBytes += cold.WrongBytes
	}
	return err
}

func (b *bench) queryGroups(ctx context.Context, name string) (err error) {
	s, prefix, atOnce := b.subjects[0], b.o.PromptTokens[0], b.o.Concurrency[0]
	ses, err := b.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ses.close(ctx)) }()
	fresh := rand.Uint64() // of queries that no other node runs
	queries := b.o.Groups * b.o.Queries
	order := rand.New(rand.NewPCG(0, 0x6b763366)).Perm(queries)
	run, err := ses.stream(ctx, atOnce, endless(queries, func(i int) []uint32 {
		group := order[i] % b.o.Groups
		prompt := streamOf(ofGroups, b.o.Salt, uint64(group)).appendTo(nil, 0, prefix)
		return streamOf(ofQueries, fresh, uint64(i)).appendTo(prompt, 0, queryTokens)
	}))
	ses.addStream(pass{name: name, inputTokens: prefix + queryTokens, atOnce: atOnce}, run)
	return err
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
		a := arrival{tokens: expand(r)}
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
