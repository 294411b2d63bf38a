package workload_test

import (
	"bytes"
	"io"
	"math"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

func generate(t *testing.T, o workload.GenerateOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := workload.Generate(&b, o); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func survey(t *testing.T, trace []byte) workload.Survey {
	t.Helper()
	s, err := workload.TakeSurvey(workload.NewReader(bytes.NewReader(trace), "generated"), 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGenerateIsDeterministic(t *testing.T) {
	a := generate(t, workload.GenerateOptions{Requests: 300, Seed: 1})
	if !bytes.Equal(a, generate(t, workload.GenerateOptions{Requests: 300, Seed: 1})) {
		t.Error("the same seed made two traces")
	}
	if bytes.Equal(a, generate(t, workload.GenerateOptions{Requests: 300, Seed: 2})) {
		t.Error("two seeds made the same trace")
	}
	if !bytes.HasPrefix(generate(t, workload.GenerateOptions{Requests: 500, Seed: 1}), a) {
		t.Error("a longer trace starts differently")
	}
}

// Equal ids must mean equal prefixes: in the whole trace an id has one place in a prompt
// and one id before it.
func TestGeneratedIDsAreChained(t *testing.T) {
	type place struct {
		index  int
		before uint64
	}
	places := map[uint64]place{}
	full := map[uint64]bool{}
	r := workload.NewReader(bytes.NewReader(generate(t, workload.GenerateOptions{Requests: 3000, Seed: 3, TurnsPerSession: 4})), "generated")
	for {
		q, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		before := uint64(math.MaxUint64)
		for i, id := range q.Blocks {
			if p, ok := places[id]; ok && p != (place{i, before}) {
				t.Fatalf("id %d at %d after %d, and elsewhere at %d after %d", id, i, before, p.index, p.before)
			}
			places[id] = place{i, before}
			isFull := (i+1)*workload.TokensPerBlock <= q.InputTokens
			if was, ok := full[id]; ok && (was != isFull || !isFull) {
				t.Fatalf("id %d stands for a full block and for a partial one, or for two partial ones", id)
			}
			full[id] = isFull
			before = id
		}
	}
}

func TestGenerateFollowsItsParameters(t *testing.T) {
	base := workload.GenerateOptions{Requests: 4000, Seed: 7}
	s := survey(t, generate(t, base))
	if s.Requests != 4000 {
		t.Fatalf("%d requests", s.Requests)
	}
	if rate := float64(s.Requests) / s.Duration.Seconds(); rate < 2 || rate > 3.5 {
		t.Errorf("%.2f requests per second, asked for 3", rate)
	}
	if hit := float64(s.HitTokens) / float64(s.Tokens); hit < 0.2 || hit > 0.7 {
		t.Errorf("%.0f %% of tokens can be hit; the defaults are meant to be a chat service", 100*hit)
	}
	hits := func(turns float64) float64 {
		o := base
		o.TurnsPerSession = turns
		s := survey(t, generate(t, o))
		return float64(s.HitTokens) / float64(s.Tokens)
	}
	if one, many := hits(1), hits(8); one >= many-0.2 {
		t.Errorf("one turn a session hits %.2f, eight %.2f", one, many)
	}
	o := base
	o.MaxInputTokens = 4096
	r := workload.NewReader(bytes.NewReader(generate(t, o)), "generated")
	for {
		q, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil || q.InputTokens > 4096 {
			t.Fatalf("%d tokens, %v", q.InputTokens, err)
		}
	}
}

func TestGenerateRefusesNonsense(t *testing.T) {
	for name, o := range map[string]workload.GenerateOptions{
		"requests": {Requests: -1}, "rate": {RatePerSecond: -1}, "NaN rate": {RatePerSecond: math.NaN()},
		"turns": {TurnsPerSession: 0.5}, "limit": {MaxInputTokens: 1}, "system prompts": {SystemPrompts: -1},
	} {
		if err := workload.Generate(io.Discard, o); err == nil {
			t.Errorf("%s: accepted %+v", name, o)
		}
	}
}
