package enginebench

import (
	"slices"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

const ms10 = 10 * time.Millisecond

// slow is a model whose passes take 10 ms for each token.
func slow(chunk int) gpus {
	return gpus{layers: 10, chunk: chunk, cost: func(parts []part) time.Duration {
		var took time.Duration
		for _, p := range parts {
			took += time.Duration(p.to-p.from) * ms10
		}
		return took
	}}
}

func (c calculation) on(g gpus) calculation {
	c.gpus = g
	return c
}

// times returns when each request had each of its tokens, in units of 10 ms.
func times10(jobs []*job) (all [][]int) {
	for _, j := range jobs {
		var tokens []int
		for _, at := range j.tokens {
			tokens = append(tokens, int(at/ms10))
		}
		all = append(all, tokens)
	}
	return all
}

func TestCalculation(t *testing.T) {
	prompt := func(tokens, output int) planned { return planned{prompt: tokens, output: output} }
	at := func(p planned, when int) planned { p.arrival = time.Duration(when) * ms10; return p }
	loading := func(p planned, cached, load int) planned {
		p.cached, p.load = cached, time.Duration(load)*ms10
		return p
	}
	for name, c := range map[string]struct {
		requests []planned
		c        calculation
		chunk    int
		want     [][]int
	}{
		"together":       {[]planned{prompt(1, 1), prompt(1, 1), prompt(1, 1)}, calculation{atOnce: 3}, 0, [][]int{{1}, {2}, {3}}},
		"one at a time":  {[]planned{prompt(1, 1), prompt(2, 1)}, calculation{atOnce: 1}, 0, [][]int{{1}, {3}}},
		"as they arrive": {[]planned{at(prompt(1, 1), 0), at(prompt(1, 1), 5)}, calculation{}, 0, [][]int{{1}, {6}}},
		// The second's load begins when the first begins to compute, and is hidden.
		"through a link":    {[]planned{loading(prompt(10, 1), 0, 10), loading(prompt(20, 1), 10, 5)}, calculation{atOnce: 2}, 0, [][]int{{11}, {21}}},
		"all, then compute": {[]planned{loading(prompt(10, 1), 0, 10)}, calculation{atOnce: 1, whole: true}, 0, [][]int{{20}}},
		"latency":           {[]planned{loading(prompt(10, 1), 0, 10)}, calculation{atOnce: 1, latency: 3 * ms10}, 0, [][]int{{14}}},
		// The last token of a prompt is computed even if it was loaded.
		"a full hit": {[]planned{{prompt: 10, output: 1, cached: 10}}, calculation{atOnce: 1}, 0, [][]int{{1}}},
		// A token of the first in the pass that computes the second, or in each part of it.
		"decode":             {[]planned{prompt(2, 3), prompt(8, 1)}, calculation{atOnce: 2}, 0, [][]int{{2, 11, 12}, {11}}},
		"decode with chunks": {[]planned{prompt(2, 3), prompt(8, 1)}, calculation{atOnce: 2}, 5, [][]int{{2, 7, 12}, {12}}},
		// The slot is free when the last token is there.
		"decode, then the next": {[]planned{prompt(2, 3), prompt(1, 1)}, calculation{atOnce: 1}, 0, [][]int{{2, 3, 4}, {5}}},
	} {
		jobs, arrivals := c.c.on(slow(c.chunk)).run(c.requests)
		if got := times10(jobs); !slices.EqualFunc(got, c.want, slices.Equal) || len(arrivals) != len(c.requests) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// The engine's memory answers a later request with the same beginning, and forgets what
// was used least recently, the end of a prompt first.
func TestEngineMemory(t *testing.T) {
	keys := func(names ...byte) (all []kvstore.Key) {
		for _, n := range names {
			all = append(all, kvstore.Key{n})
		}
		return all
	}
	m := newEngineMemory(4)
	serve := func(prompt []kvstore.Key, want int) {
		t.Helper()
		found := m.use(prompt)
		if found != want {
			t.Errorf("%d blocks of %v in memory, want %d", found, prompt, want)
		}
		m.computed(prompt, found)
		m.release(prompt)
	}
	serve(keys(1, 2, 3), 0)
	serve(keys(1, 2, 4), 2) // 4 blocks in all
	serve(keys(1, 2, 3), 3)
	serve(keys(5), 0)       // in the place of 4
	serve(keys(1, 2, 4), 2) // in the place of 3
	serve(keys(6, 7), 0)    // in the place of 5 and 4
	serve(keys(1, 2, 3), 2)
	// A request under way keeps its blocks, and the space that it needs.
	long := keys(1, 2, 3, 8)
	found := m.use(long)
	serve(keys(9), 0)
	serve(keys(9), 0)
	m.computed(long, found)
	m.release(long)
	serve(long, 4)
}

func TestCalculationWithMemory(t *testing.T) {
	shared := []kvstore.Key{{1}, {2}}
	requests := []planned{
		{prompt: 5, output: 1, keys: shared}, {prompt: 5, output: 1, keys: shared}, {prompt: 5, output: 1, keys: shared},
	}
	c := calculation{subject: &Subject{blockTokens: 2}, atOnce: 3, memory: newEngineMemory(10)}.on(slow(0))
	jobs, _ := c.run(requests)
	// The second is looked up when the first begins, and finds nothing yet; the third finds
	// what the first has computed.
	if got := times10(jobs); !slices.EqualFunc(got, [][]int{{5}, {10}, {11}}, slices.Equal) {
		t.Errorf("%v", got)
	}
}

func TestHistory(t *testing.T) {
	k := func(n byte) kvstore.Key { return kvstore.Key{n} }
	h := newHistory()
	for i, c := range []struct {
		keys                     []kvstore.Key
		found, earlier, computed int
	}{
		{[]kvstore.Key{k(1), k(2)}, 0, 0, 0},
		{[]kvstore.Key{k(1), k(2), k(3)}, 0, 2, 0}, // the first is not computed yet
		{[]kvstore.Key{k(4)}, 1, 1, 1},             // of an earlier bench
		{[]kvstore.Key{k(4), k(1)}, 0, 2, 1},       // lost, but an ideal store would have it
	} {
		if earlier, computed := h.look(c.keys, c.found); earlier != c.earlier || computed != c.computed {
			t.Errorf("request %d: %d, %d; want %d, %d", i, earlier, computed, c.earlier, c.computed)
		}
	}
	h.add([]kvstore.Key{k(1), k(2)})
	if earlier, computed := h.look([]kvstore.Key{k(1), k(2), k(3)}, 0); earlier != 3 || computed != 2 {
		t.Errorf("%d, %d", earlier, computed)
	}
}

// A pass takes at least as long as reading the weights.
func TestPassHasAFloor(t *testing.T) {
	p, err := parseSubject("QwQ-32B@2xH100", 0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSubject(p, 128, 1, LoadLayers)
	if err != nil {
		t.Fatal(err)
	}
	if got, floor := s.pass([]part{{31_999, 32_000, 32_000, 1}}), p.Floor(1); got < floor || got > 2*floor {
		t.Errorf("one token after 31,999 takes %v; reading the weights takes %v", got, floor)
	}
	one, two := s.pass([]part{{0, 4000, 4000, 1}}), s.pass([]part{{0, 4000, 4000, 1}, {100, 101, 100, 1}})
	if two <= one {
		t.Errorf("%v with a token that decodes, %v without", two, one)
	}
}

func TestServing(t *testing.T) {
	ms := func(all ...int) (tokens []time.Duration) {
		for _, n := range all {
			tokens = append(tokens, time.Duration(n)*time.Millisecond)
		}
		return tokens
	}
	s := servingOf([][]outcome{{
		{arrival: 0, tokens: ms(100, 110, 130), prompt: 1000},
		{arrival: 50 * time.Millisecond, tokens: ms(250, 290), prompt: 500},
	}})
	for name, c := range map[string]struct{ got, want float64 }{
		"seconds": {s.Seconds, 0.29}, "requests/s": {s.RequestsPerSecond, 2 / 0.29}, "tokens/s": {s.TokensPerSecond, 1505 / 0.29},
		"TTFT": {s.TTFT.Mean, 150}, "TTFT median": {s.TTFT.Median, 150}, "TTFT p90": {s.TTFT.P90, 190}, "TTFT p99": {s.TTFT.P99, 199},
		"TPOT": {s.TPOT.Mean, (15 + 40) / 2.0}, "ITL": {s.ITL.Mean, (10 + 20 + 40) / 3.0}, "E2EL": {s.E2EL.Mean, (130 + 240) / 2.0},
	} {
		if d := c.got - c.want; d > 1e-9 || d < -1e-9 {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
}
