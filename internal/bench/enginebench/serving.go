package enginebench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Serving is what the benchmarks of engines print of a run, such as vLLM's "vllm bench
// serve". Percentiles are interpolated linearly between the nearest two, as there.
type Serving struct {
	Requests     int     `json:"completed"`
	Seconds      float64 `json:"duration_seconds"` // from the first arrival to the last token
	InputTokens  int64   `json:"input_tokens"`
	OutputTokens int64   `json:"output_tokens"`

	RequestsPerSecond     float64 `json:"requests_per_second"`
	OutputTokensPerSecond float64 `json:"output_tokens_per_second"`
	TokensPerSecond       float64 `json:"tokens_per_second"` // of input and output

	TTFT Latency `json:"ttft_ms"`
	TPOT Latency `json:"tpot_ms"` // of each request: the mean time for a token after the first
	ITL  Latency `json:"itl_ms"`  // between each two tokens
	E2EL Latency `json:"e2el_ms"` // from arrival to the last token
}

// Latency has the usual figures of a distribution, in ms.
type Latency struct {
	Mean   float64 `json:"mean"`
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	P99    float64 `json:"p99"`
}

// servingOf returns the figures of all runs together.
func servingOf(runs [][]outcome) *Serving {
	var s Serving
	var ttft, tpot, itl, e2el []float64
	for _, run := range runs {
		var begin, end time.Duration = math.MaxInt64, 0
		for _, o := range run {
			begin, end = min(begin, o.arrival), max(end, o.last())
			s.Requests++
			s.InputTokens += int64(o.prompt)
			s.OutputTokens += int64(len(o.tokens))
			ttft = append(ttft, milliseconds(o.first()-o.arrival))
			e2el = append(e2el, milliseconds(o.last()-o.arrival))
			if n := len(o.tokens); n > 1 {
				tpot = append(tpot, milliseconds(o.last()-o.first())/float64(n-1))
			}
			for i, at := range o.tokens[1:] {
				itl = append(itl, milliseconds(at-o.tokens[i]))
			}
		}
		if len(run) > 0 {
			s.Seconds += (end - begin).Seconds()
		}
	}
	s.RequestsPerSecond = ratio(float64(s.Requests), s.Seconds)
	s.OutputTokensPerSecond = ratio(float64(s.OutputTokens), s.Seconds)
	s.TokensPerSecond = ratio(float64(s.InputTokens+s.OutputTokens), s.Seconds)
	s.TTFT, s.TPOT, s.ITL, s.E2EL = latencyOf(ttft), latencyOf(tpot), latencyOf(itl), latencyOf(e2el)
	return &s
}

func latencyOf(ms []float64) (l Latency) {
	if len(ms) == 0 {
		return l
	}
	slices.Sort(ms)
	for _, v := range ms {
		l.Mean += v / float64(len(ms))
	}
	at := func(share float64) float64 {
		place := share * float64(len(ms)-1)
		low := int(place)
		high := min(low+1, len(ms)-1)
		return ms[low] + (place-float64(low))*(ms[high]-ms[low])
	}
	l.Median, l.P90, l.P99 = at(0.5), at(0.9), at(0.99)
	return l
}

// lines returns the figures in the form in which engine benchmarks print them.
func (s *Serving) lines(title string) (all []string) {
	const width = 50
	heading := func(text, filler string) {
		rest := max(width-len(text), 0)
		all = append(all, strings.Repeat(filler, rest/2)+text+strings.Repeat(filler, rest-rest/2))
	}
	figure := func(name string, v float64) { all = append(all, fmt.Sprintf("%-40s %.2f", name+":", v)) }
	count := func(name string, n int64) { all = append(all, fmt.Sprintf("%-40s %d", name+":", n)) }
	heading(" "+title+" ", "=")
	count("Successful requests", int64(s.Requests))
	figure("Benchmark duration (s)", s.Seconds)
	count("Total input tokens", s.InputTokens)
	count("Total generated tokens", s.OutputTokens)
	figure("Request throughput (req/s)", s.RequestsPerSecond)
	figure("Output token throughput (tok/s)", s.OutputTokensPerSecond)
	figure("Total token throughput (tok/s)", s.TokensPerSecond)
	for _, l := range []struct {
		name, short string
		Latency
	}{
		{"Time to First Token", "TTFT", s.TTFT}, {"Time per Output Token (excl. 1st token)", "TPOT", s.TPOT},
		{"Inter-token Latency", "ITL", s.ITL}, {"End-to-end Latency", "E2EL", s.E2EL},
	} {
		heading(l.name, "-")
		figure("Mean "+l.short+" (ms)", l.Mean)
		figure("Median "+l.short+" (ms)", l.Median)
		figure("P90 "+l.short+" (ms)", l.P90)
		figure("P99 "+l.short+" (ms)", l.P99)
	}
	return append(all, strings.Repeat("=", width))
}
