package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
)

// plan holds the prediction for an instance of an engine.
type plan struct {
	Answers []string `json:"answers"` // one sentence per pipe

	Model       string  `json:"model,omitempty"`
	GPU         string  `json:"gpu"`
	GPUs        int     `json:"gpus"`
	TP          int     `json:"tp"`
	KVDType     string  `json:"kv_dtype"`
	PeakTFLOPS  float64 `json:"peak_tflops"` // of all GPUs together
	MFU         float64 `json:"mfu"`         // at the context's length
	MFUMeasured bool    `json:"mfu_measured"`

	ContextTokens   int           `json:"context_tokens"`
	Hit             float64       `json:"hit"`
	BlockTokens     int           `json:"block_tokens"`
	OverheadMs      float64       `json:"overhead_ms"`
	RankBytes       int64         `json:"bytes_per_token_and_rank"`
	InstanceBytes   int64         `json:"bytes_per_token"`
	BlockBytes      int64         `json:"block_bytes"`
	ContextBytes    int64         `json:"context_bytes"`
	PrefillTokens   float64       `json:"prefill_tokens_per_second"` // of the context, computed
	BreakEvenPerSec float64       `json:"break_even_bytes_per_second"`
	Capacity        *planCapacity `json:"capacity,omitempty"`
	Pipes           []planPipe    `json:"pipes"`

	latent bool
}

type planCapacity struct {
	Bytes         int64 `json:"bytes"`
	Tokens        int64 `json:"tokens"` // in whole blocks
	Conversations int64 `json:"conversations"`
}

// planPipe holds the prediction for one bandwidth.
type planPipe struct {
	Name           string    `json:"name"`
	BytesPerSecond float64   `json:"bytes_per_second"`
	WinsFrom       int       `json:"wins_from_tokens"` // 0: never
	WinsUpTo       int       `json:"looked_up_to"`     // tokens
	Contexts       []planRow `json:"contexts"`         // ascending
	text           string    // the name with its rate
}

// planRow is a request of one length.
type planRow struct {
	Tokens          int     `json:"tokens"`
	CachedTokens    int     `json:"cached_tokens"`
	LoadBytes       int64   `json:"load_bytes"`
	FullComputeMs   float64 `json:"full_compute_ms"`
	LoadMs          float64 `json:"load_ms"`
	LoadedMs        float64 `json:"loaded_ms"`
	OverlappedMs    float64 `json:"overlapped_ms"`
	IdealMs         float64 `json:"ideal_ms"`
	Speedup         float64 `json:"speedup"` // overlapped
	IdealSpeedup    float64 `json:"ideal_speedup"`
	Bound           string  `json:"bound"`
	BreakEvenPerSec float64 `json:"break_even_bytes_per_second"`
}

func newPlan(c *planCmd, in instance) *plan {
	h := in.profile.Hardware
	context := int(c.Context)
	r := &plan{
		Model: in.profile.Model.Name, GPU: h.GPU.Name, GPUs: h.Count, TP: in.tp, KVDType: c.KVDType,
		PeakTFLOPS: h.FLOPS() / 1e12, MFU: in.profile.MFU(context, 1), MFUMeasured: in.profile.Measured(),
		ContextTokens: context, Hit: float64(c.Hit), BlockTokens: c.BlockTokens, OverheadMs: millis(c.Overhead),
		RankBytes: in.rankBytes, InstanceBytes: in.instanceBytes,
		BlockBytes: in.instanceBytes * int64(c.BlockTokens), ContextBytes: in.instanceBytes * int64(context),
		PrefillTokens:   in.profile.TokensPerSecond(context),
		BreakEvenPerSec: in.profile.BreakEven(in.instanceBytes, context),
		latent:          in.profile.Model.MLA(),
	}
	if c.Capacity > 0 {
		tokens := int64(c.Capacity) / r.BlockBytes * int64(c.BlockTokens)
		r.Capacity = &planCapacity{Bytes: int64(c.Capacity), Tokens: tokens, Conversations: tokens / int64(context)}
	}
	for _, b := range c.Bandwidth {
		p := r.pipe(prefill.Pipe(b), in, c.Overhead)
		r.Pipes = append(r.Pipes, p)
		r.Answers = append(r.Answers, r.answer(p))
	}
	return r
}

// contexts returns the lengths to show: 4Ki to 128Ki, and the given one.
func (r *plan) contexts() []int {
	lengths := []int{r.ContextTokens}
	for n := 4 << 10; n <= 128<<10; n *= 2 {
		if n >= r.BlockTokens {
			lengths = append(lengths, n)
		}
	}
	slices.Sort(lengths)
	return slices.Compact(lengths)
}

func (r *plan) pipe(p prefill.Pipe, in instance, overhead time.Duration) planPipe {
	store := prefill.Store{Pipe: p, BytesPerToken: in.instanceBytes, Overhead: overhead}
	lengths := r.contexts()
	longest := lengths[len(lengths)-1]
	out := planPipe{
		Name: p.Name, BytesPerSecond: p.BytesPerSecond, text: bandwidth(p).String(),
		WinsFrom: in.profile.WinsFrom(store, r.BlockTokens, longest), WinsUpTo: longest,
	}
	for _, tokens := range lengths {
		cached := int(r.Hit*float64(tokens)+1e-6) / r.BlockTokens * r.BlockTokens
		t := in.profile.TTFT(store, cached, tokens)
		out.Contexts = append(out.Contexts, planRow{
			Tokens: tokens, CachedTokens: cached, LoadBytes: int64(cached) * in.instanceBytes,
			FullComputeMs: millis(t.FullCompute), LoadMs: millis(t.Load), LoadedMs: millis(t.Loaded),
			OverlappedMs: millis(t.Overlapped), IdealMs: millis(t.Ideal),
			Speedup:      t.FullCompute.Seconds() / t.Overlapped.Seconds(),
			IdealSpeedup: t.FullCompute.Seconds() / t.Ideal.Seconds(),
			Bound:        t.Bound(), BreakEvenPerSec: in.profile.BreakEven(in.instanceBytes, tokens),
		})
	}
	return out
}

// answer states the conclusion for one bandwidth in a sentence.
func (r *plan) answer(p planPipe) string {
	at := p.Contexts[slices.IndexFunc(p.Contexts, func(row planRow) bool { return row.Tokens == r.ContextTokens })]
	over := fmt.Sprintf("Over %s, loading", p.text)
	first := fmt.Sprintf("%s is faster from %s tokens on", over, comma(p.WinsFrom))
	if p.WinsFrom == 0 {
		first = fmt.Sprintf("%s takes longer than computing at every length up to %s tokens: %s", over, comma(p.WinsUpTo), r.needed(at))
	}
	change := fmt.Sprintf("at %s tokens with %v hit, TTFT", comma(r.ContextTokens), share(r.Hit))
	from := secondsText(at.FullComputeMs)
	switch {
	case at.CachedTokens == 0:
		return fmt.Sprintf("%s; %s stays %s: the hit contains no whole block.", first, change, from)
	case at.OverlappedMs >= at.FullComputeMs:
		return fmt.Sprintf("%s; %s would rise from %s to %s.", first, change, from, secondsText(at.OverlappedMs))
	case at.LoadedMs >= at.FullComputeMs:
		return fmt.Sprintf("%s; %s falls from %s to %s only if layers load while others are computed.", first, change, from, secondsText(at.OverlappedMs))
	}
	return fmt.Sprintf("%s; %s falls from %s to %s, or to %s if layers load while others are computed (%.1f and %.1f times faster, ideal %.1f).", first, change, from,
		secondsText(at.LoadedMs), secondsText(at.OverlappedMs), at.FullComputeMs/at.LoadedMs, at.Speedup, at.IdealSpeedup)
}

// needed describes the bandwidth at which loading the context takes as long as computing
// it. It is higher than BreakEven, which leaves out the overhead.
func (r *plan) needed(at planRow) string {
	left := at.FullComputeMs - r.OverheadMs
	if left <= 0 {
		return fmt.Sprintf("the overhead of each load is as long as computing %s tokens", comma(at.Tokens))
	}
	return fmt.Sprintf("%s tokens need %s, overhead included", comma(at.Tokens), rateText(float64(r.ContextBytes)/left*1e3))
}

// WriteTable writes the plan as text.
func (r *plan) WriteTable(w io.Writer) error {
	var b strings.Builder
	for _, answer := range r.Answers {
		b.WriteString(answer + "\n")
	}
	b.WriteByte('\n')
	r.writeFacts(&b)
	for _, p := range r.Pipes {
		fmt.Fprintf(&b, "\nTTFT over %s, %v hit:\n", p.text, share(r.Hit))
		p.writeRows(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *plan) writeFacts(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fact := func(name, format string, args ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	name := r.Model
	if name == "" {
		name = "model given by its shape"
	}
	fact("instance", "%s on %dx%s, TP %d, KV in %s", name, r.GPUs, r.GPU, r.TP, r.KVDType)
	source := "assumed"
	if r.MFUMeasured {
		source = "as UCM measured it"
		if r.latent {
			source += " in AWQ"
		}
	}
	fact("prefill", "%s tokens/s at %s tokens: %.4g TFLOPS, MFU %.2f (%s)", comma(int(r.PrefillTokens)), comma(r.ContextTokens), r.PeakTFLOPS, r.MFU, source)
	ranks := "on each rank"
	if r.latent {
		ranks = "on each rank, the same on all (MLA): loaded once"
	}
	fact("KV per token", "%s of the instance, %s %s", sizeText(r.InstanceBytes), sizeText(r.RankBytes), ranks)
	fact("KV of the context", "%s, in blocks of %s (%d tokens)", sizeText(r.ContextBytes), sizeText(r.BlockBytes), r.BlockTokens)
	fact("break even", "%s: below it, loading the context takes longer than computing it", rateText(r.BreakEvenPerSec))
	if r.Capacity != nil {
		fact("capacity", "%s hold %s tokens, %s conversations of %s", sizeText(r.Capacity.Bytes),
			humanize.Comma(r.Capacity.Tokens), humanize.Comma(r.Capacity.Conversations), comma(r.ContextTokens))
	}
	t.Flush()
}

func (p planPipe) writeRows(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "tokens\tto load\tbreak even\tcompute\tloaded\toverlapped\tideal\tspeed-up\tbound by\t")
	for _, row := range p.Contexts {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", comma(row.Tokens), sizeText(row.LoadBytes), rateText(row.BreakEvenPerSec),
			secondsText(row.FullComputeMs), secondsText(row.LoadedMs), secondsText(row.OverlappedMs), secondsText(row.IdealMs), threeDigits(row.Speedup), row.Bound)
	}
	t.Flush()
}

func comma(n int) string { return humanize.Comma(int64(n)) }

func sizeText(bytes int64) string { return humanize.IBytesN(uint64(bytes), 3) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// secondsText writes a time in ms or s.
func secondsText(ms float64) string {
	switch {
	case ms < 999.5:
		return threeDigits(ms) + " ms"
	case ms < 999_500:
		return threeDigits(ms/1e3) + " s"
	}
	return humanize.Comma(int64(ms/1e3)) + " s"
}

// threeDigits writes a positive number with two or three digits, for columns.
func threeDigits(x float64) string {
	switch {
	case x < 0.995:
		return fmt.Sprintf("%.2g", x)
	case x < 9.995:
		return fmt.Sprintf("%.2f", x)
	case x < 99.95:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}
