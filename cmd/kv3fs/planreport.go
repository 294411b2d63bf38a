package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
)

// plan holds the prediction for an instance of an engine.
type plan struct {
	Answers  []string `json:"answers"`            // a few sentences per pipe
	Warnings []string `json:"warnings,omitempty"` // what stands in the way of the whole plan

	Model       string   `json:"model,omitempty"`
	Layers      []string `json:"layers"` // by kind
	Params      float64  `json:"parameters"`
	ActiveParam float64  `json:"active_parameters"` // used for each token, without embeddings
	WeightBytes float64  `json:"weight_bytes"`
	GPU         string   `json:"gpu"`
	GPUs        int      `json:"gpus"`
	Hosts       int      `json:"hosts"`
	GPUMemory   float64  `json:"gpu_memory_bytes"` // of all GPUs together; 0: unknown
	TP          int      `json:"tp"`
	KVDType     string   `json:"kv_dtype"`
	PeakTFLOPS  float64  `json:"peak_tflops"` // of all GPUs together
	MFU         float64  `json:"mfu"`
	MFURange    between  `json:"mfu_range"`

	ContextTokens int           `json:"context_tokens"`
	Hit           float64       `json:"hit"`
	BlockTokens   int           `json:"block_tokens"`
	OverheadMs    float64       `json:"overhead_ms"`
	RankBytes     int64         `json:"bytes_per_token_and_rank"`
	InstanceBytes int64         `json:"bytes_per_token"`
	StateBytes    int64         `json:"state_bytes"`
	BlockBytes    int64         `json:"block_bytes"`
	ContextBytes  int64         `json:"context_bytes"`
	PrefillTokens float64       `json:"prefill_tokens_per_second"` // of the context, computed
	PrefillRange  between       `json:"prefill_range"`
	FloorMs       float64       `json:"floor_ms"` // of a pass over the whole context
	Capacity      *planCapacity `json:"capacity,omitempty"`
	Pipes         []planPipe    `json:"pipes"`
	Measured      []planRecord  `json:"measured,omitempty"`
	MeasuredNotes []string      `json:"measured_notes,omitempty"`

	latent, mixture, windowed, wholeWindows bool
}

// between is a range over the plausible MFU.
type between struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

func ends(a, b float64) between { return between{min(a, b), max(a, b)} }

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
	WinsFromRange  winsRange `json:"wins_from_range"`
	WinsUpTo       int       `json:"looked_up_to"` // tokens
	// MFU up to which loading the context's hit is faster than computing it: 1 at any, 0 at none.
	TurnsAtMFU float64   `json:"turns_at_mfu"`
	Contexts   []planRow `json:"contexts"` // ascending
	text       string    // the name with its rate
}

// winsRange is WinsFrom at the ends of the plausible MFU.
type winsRange struct {
	AtLowMFU  int `json:"at_low_mfu"`
	AtHighMFU int `json:"at_high_mfu"`
}

// planRow is a request of one length.
type planRow struct {
	Tokens          int      `json:"tokens"`
	CachedTokens    int      `json:"cached_tokens"`
	LoadBytes       int64    `json:"load_bytes"`
	FullComputeMs   float64  `json:"full_compute_ms"`
	LoadMs          float64  `json:"load_ms"`
	LoadedMs        float64  `json:"loaded_ms"`
	OverlappedMs    float64  `json:"overlapped_ms"`
	IdealMs         float64  `json:"ideal_ms"`
	LoadedSpeedup   float64  `json:"loaded_speedup"`
	Speedup         float64  `json:"speedup"` // overlapped
	IdealSpeedup    float64  `json:"ideal_speedup"`
	Bound           string   `json:"bound"`
	BreakEvenPerSec *float64 `json:"break_even_bytes_per_second"` // of the hit, with overhead; null: no bandwidth is enough

	FullComputeRange   between `json:"full_compute_range_ms"`
	LoadedRange        between `json:"loaded_range_ms"`
	OverlappedRange    between `json:"overlapped_range_ms"`
	LoadedSpeedupRange between `json:"loaded_speedup_range"`
	SpeedupRange       between `json:"speedup_range"`
	BreakEvenRange     between `json:"break_even_range"` // 0: no bandwidth is enough
}

// planRecord is a published measurement beside the prediction, over the first bandwidth.
// Its times are the mean of requests that arrive together.
type planRecord struct {
	Source        string  `json:"source"`
	Concurrent    int     `json:"concurrent"`
	Tokens        int     `json:"tokens"`
	FullComputeMs float64 `json:"full_compute_ms"`
	Hit80Ms       float64 `json:"hit_80_ms"`
	Predicted     planRow `json:"predicted"`
}

func newPlan(c *planCmd, in instance) *plan {
	p, m := in.profile, in.profile.Model
	h := p.Hardware
	context := int(c.Context)
	r := &plan{
		Model: m.Name, Params: m.Weights.Params(), ActiveParam: m.Weights.Active(), WeightBytes: m.Weights.Bytes(),
		GPU: h.GPU.Name, GPUs: h.Count, Hosts: max(h.Hosts, 1), GPUMemory: h.MemoryBytes(), TP: h.Ranks().TP, KVDType: c.KVDType,
		PeakTFLOPS: h.FLOPS() / 1e12, MFU: in.mfu.Typical, MFURange: between{in.mfu.Low, in.mfu.High},
		ContextTokens: context, Hit: float64(c.Hit), BlockTokens: c.BlockTokens, OverheadMs: millis(c.Overhead),
		RankBytes: in.rankBytes, InstanceBytes: in.instanceBytes, StateBytes: m.StateBytes(),
		BlockBytes: in.instanceBytes * int64(c.BlockTokens), ContextBytes: in.instanceBytes*int64(context) + m.StateBytes(),
		PrefillTokens: p.TokensPerSecond(context), PrefillRange: ends(in.slow.TokensPerSecond(context), in.fast.TokensPerSecond(context)),
		FloorMs: millis(p.Floor(context)),
		latent:  m.MLA(), mixture: m.Weights.Mixture(), windowed: m.Windowed(), wholeWindows: c.WholeWindows,
	}
	for _, l := range m.Kinds {
		r.Layers = append(r.Layers, l.String())
	}
	if m.Note != "" {
		r.Warnings = append(r.Warnings, m.Note)
	}
	r.Warnings = append(r.Warnings, r.misfit()...)
	if c.Capacity > 0 && r.BlockBytes > 0 {
		tokens := int64(c.Capacity) / r.BlockBytes * int64(c.BlockTokens)
		r.Capacity = &planCapacity{Bytes: int64(c.Capacity), Tokens: tokens, Conversations: int64(c.Capacity) / r.ContextBytes}
	}
	for _, b := range c.Bandwidth {
		store := prefill.Store{Pipe: prefill.Pipe(b), Overhead: c.Overhead, BlockTokens: c.BlockTokens, WholeWindows: c.WholeWindows}
		p := r.pipe(store, in)
		r.Pipes = append(r.Pipes, p)
		r.Answers = append(r.Answers, strings.Join(r.answer(p), " "))
		if r.Measured == nil {
			r.Measured = r.records(store, in)
		}
		if r.MeasuredNotes == nil {
			r.MeasuredNotes = r.recordNotes(store, in)
		}
	}
	return r
}

// usableMemory is the share of GPU memory that engines use by default.
const usableMemory = 0.9

// misfit says what does not fit into the GPUs' memory.
func (r *plan) misfit() []string {
	if r.GPUMemory == 0 {
		return nil
	}
	usable := usableMemory * r.GPUMemory
	gpus := fmt.Sprintf("%dx%s", r.GPUs, r.GPU)
	switch left := usable - r.WeightBytes; {
	case left <= 0:
		need := int(math.Ceil(r.WeightBytes / (usable / float64(r.GPUs))))
		return []string{fmt.Sprintf("The weights take %s and do not fit into the %s that engines use of the memory of %s; they need at least %d such GPUs, or a quantized model (--weights SIZE). The times below are those of GPUs with more memory.",
			decimalText(r.WeightBytes), decimalText(usable), gpus, need)}
	case left < float64(r.RankBytes)*float64(r.TP)*float64(r.ContextTokens):
		return []string{fmt.Sprintf("Beside the weights, %s has room for %s of KV, and one prompt of %s tokens takes more.", gpus, decimalText(left), comma(r.ContextTokens))}
	}
	return nil
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

// cached returns how many of a prompt's tokens a hit has, in whole blocks.
func (r *plan) cached(hit float64, tokens int) int {
	return int(hit*float64(tokens)+1e-6) / r.BlockTokens * r.BlockTokens
}

func (r *plan) pipe(s prefill.Store, in instance) planPipe {
	lengths := r.contexts()
	longest := lengths[len(lengths)-1]
	out := planPipe{
		Name: s.Pipe.Name, BytesPerSecond: s.Pipe.BytesPerSecond, text: bandwidth(s.Pipe).String(),
		WinsFrom: in.profile.WinsFrom(s, longest), WinsUpTo: longest,
		WinsFromRange: winsRange{in.slow.WinsFrom(s, longest), in.fast.WinsFrom(s, longest)},
		TurnsAtMFU:    in.profile.TurningMFU(s, r.cached(r.Hit, r.ContextTokens), r.ContextTokens),
	}
	for _, tokens := range lengths {
		out.Contexts = append(out.Contexts, newRow(s, in, r.cached(r.Hit, tokens), tokens))
	}
	return out
}

func newRow(s prefill.Store, in instance, cached, tokens int) planRow {
	t, slow, fast := in.profile.TTFT(s, cached, tokens), in.slow.TTFT(s, cached, tokens), in.fast.TTFT(s, cached, tokens)
	ratio := func(a, b time.Duration) float64 { return a.Seconds() / b.Seconds() }
	breakEven := func(p *prefill.Profile) float64 {
		rate, _ := p.BreakEven(s, cached, tokens)
		return rate
	}
	row := planRow{
		Tokens: tokens, CachedTokens: cached, LoadBytes: in.profile.LoadBytes(s, cached),
		FullComputeMs: millis(t.FullCompute), LoadMs: millis(t.Load), LoadedMs: millis(t.Loaded),
		OverlappedMs: millis(t.Overlapped), IdealMs: millis(t.Ideal),
		LoadedSpeedup: ratio(t.FullCompute, t.Loaded), Speedup: ratio(t.FullCompute, t.Overlapped), IdealSpeedup: ratio(t.FullCompute, t.Ideal),
		Bound: t.Bound(),

		FullComputeRange:   ends(millis(slow.FullCompute), millis(fast.FullCompute)),
		LoadedRange:        ends(millis(slow.Loaded), millis(fast.Loaded)),
		OverlappedRange:    ends(millis(slow.Overlapped), millis(fast.Overlapped)),
		LoadedSpeedupRange: ends(ratio(slow.FullCompute, slow.Loaded), ratio(fast.FullCompute, fast.Loaded)),
		SpeedupRange:       ends(ratio(slow.FullCompute, slow.Overlapped), ratio(fast.FullCompute, fast.Overlapped)),
		BreakEvenRange:     between{breakEven(in.slow), breakEven(in.fast)},
	}
	if rate := breakEven(in.profile); rate > 0 {
		row.BreakEvenPerSec = &rate
	}
	return row
}

// records returns UCM's measurements on such an instance.
func (r *plan) records(s prefill.Store, in instance) (all []planRecord) {
	for _, m := range prefill.Measured(in.profile.Model, in.profile.Hardware) {
		all = append(all, planRecord{
			Source: "UCM, " + m.Model + m.Weights, Concurrent: m.Concurrent, Tokens: m.TotalTokens, FullComputeMs: millis(m.FullCompute), Hit80Ms: millis(m.Hit80),
			Predicted: newRow(s, in, r.cached(0.8, m.TotalTokens), m.TotalTokens).queued(m.Concurrent),
		})
	}
	return all
}

// queued returns the mean of so many requests that arrive together and are processed one
// after the other. load_ms remains that of one.
func (row planRow) queued(requests int) planRow {
	wait := (float64(requests) + 1) / 2
	for _, ms := range []*float64{&row.FullComputeMs, &row.LoadedMs, &row.OverlappedMs, &row.IdealMs} {
		*ms *= wait
	}
	for _, b := range []*between{&row.FullComputeRange, &row.LoadedRange, &row.OverlappedRange} {
		b.Low, b.High = b.Low*wait, b.High*wait
	}
	return row
}

// recordNotes says what else UCM published of such an instance.
func (r *plan) recordNotes(s prefill.Store, in instance) (notes []string) {
	if t, ok := prefill.MeasuredTwice(in.profile.Model, in.profile.Hardware); ok {
		row := newRow(s, in, r.cached(1, t.TotalTokens), t.TotalTokens).queued(t.Prompts)
		notes = append(notes, fmt.Sprintf("UCM's documentation also has %s on %d GPUs that it does not name, %d prompts of %s tokens at once: mean TTFT %s without a hit and %s with all blocks in the store; predicted for these GPUs: %s, and %s or %s with layers that overlap.",
			t.Model, t.Ranks, t.Prompts, comma(t.TotalTokens), secondsText(millis(t.First)), secondsText(millis(t.Second)),
			secondsText(row.FullComputeMs), secondsText(row.LoadedMs), secondsText(row.OverlappedMs)))
	}
	twice := prefill.UCMTwice()
	for _, m := range prefill.Measured(in.profile.Model, in.profile.Hardware) {
		if m.FullCompute == twice.First {
			notes = append(notes, fmt.Sprintf("The %.2f ms of %d prompts of %s tokens stand twice in UCM's documentation, here and for %d prompts of %s: one may have been copied from the other.",
				millis(m.FullCompute), m.Concurrent, comma(m.TotalTokens), twice.Prompts, twice.Model))
		}
	}
	return notes
}

// at returns the row of the context.
func (r *plan) at(p planPipe) planRow {
	return p.Contexts[slices.IndexFunc(p.Contexts, func(row planRow) bool { return row.Tokens == r.ContextTokens })]
}

// answer states the conclusion for one bandwidth in sentences: the prediction, its range,
// and where the verdict turns.
func (r *plan) answer(p planPipe) []string {
	at := r.at(p)
	over := fmt.Sprintf("Over %s, loading", p.text)
	first := fmt.Sprintf("%s is faster from %s tokens on", over, comma(p.WinsFrom))
	if p.WinsFrom == 0 {
		first = fmt.Sprintf("%s takes longer than computing at every length up to %s tokens", over, comma(p.WinsUpTo))
	}
	change := fmt.Sprintf("at %s tokens with %v hit, TTFT", comma(r.ContextTokens), share(r.Hit))
	from := secondsText(at.FullComputeMs)
	switch {
	case at.CachedTokens == 0:
		return []string{fmt.Sprintf("%s; %s stays %s: the hit contains no whole block.", first, change, from)}
	case at.OverlappedMs >= at.FullComputeMs:
		first = fmt.Sprintf("%s; %s would rise from %s to %s.", first, change, from, secondsText(at.OverlappedMs))
	case at.LoadedMs >= at.FullComputeMs:
		first = fmt.Sprintf("%s; %s falls from %s to %s only if layers load while others are computed.", first, change, from, secondsText(at.OverlappedMs))
	default:
		first = fmt.Sprintf("%s; %s falls from %s to %s, or to %s if layers load while others are computed (%.1f and %.1f times faster, ideal %.1f).", first, change, from,
			secondsText(at.LoadedMs), secondsText(at.OverlappedMs), at.LoadedSpeedup, at.Speedup, at.IdealSpeedup)
	}
	return []string{first, r.rangeText(at), r.turnText(p, at)}
}

// rangeText says what the prediction is at the ends of the plausible MFU.
func (r *plan) rangeText(at planRow) string {
	return fmt.Sprintf("With MFU %s instead of %s: %s, or %s with layers that overlap.", r.MFURange.text("%.2g", " to "), fmt.Sprintf("%.2g", r.MFU),
		at.LoadedSpeedupRange.times(), at.SpeedupRange.times())
}

// turnText says where loading, without overlap, stops or begins to be faster than computing.
func (r *plan) turnText(p planPipe, at planRow) string {
	text := "The verdict"
	if p.TurnsAtMFU > r.MFURange.Low && p.TurnsAtMFU < r.MFURange.High {
		text = "Uncertain: the verdict"
	}
	text += " without overlap turns"
	below, above := "below", "above"
	if at.LoadedMs >= at.FullComputeMs {
		below, above = above, below
	}
	if at.BreakEvenPerSec == nil {
		text += " at no bandwidth, since the overhead alone takes longer than computing the hit,"
	} else {
		text += fmt.Sprintf(" %s %s,", below, rateText(*at.BreakEvenPerSec))
	}
	if p.TurnsAtMFU == 0 || p.TurnsAtMFU == 1 {
		return text + " and at this bandwidth at no MFU."
	}
	return text + fmt.Sprintf(" and at this bandwidth %s MFU %.2g.", above, p.TurnsAtMFU)
}

// text writes both ends, or one if they are written alike.
func (b between) text(format, to string) string {
	low, high := fmt.Sprintf(format, b.Low), fmt.Sprintf(format, b.High)
	if low == high {
		return low
	}
	return low + to + high
}

// times writes a range of speed-ups.
func (b between) times() string {
	one := func(x float64) string {
		if x < 1 {
			return threeDigits(1/x) + " times slower"
		}
		return threeDigits(x) + " times faster"
	}
	low, high := one(b.Low), one(b.High)
	switch {
	case low == high:
		return low
	case b.Low >= 1:
		return threeDigits(b.Low) + " to " + high
	case b.High < 1:
		return threeDigits(1/b.High) + " to " + low
	}
	return low + " to " + high
}

// WriteTable writes the plan as text.
func (r *plan) WriteTable(w io.Writer) error {
	var b strings.Builder
	for _, warning := range r.Warnings {
		b.WriteString("Warning: " + warning + "\n\n")
	}
	for _, p := range r.Pipes {
		for i, sentence := range r.answer(p) {
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(sentence + "\n")
		}
	}
	b.WriteByte('\n')
	r.writeFacts(&b)
	for _, p := range r.Pipes {
		fmt.Fprintf(&b, "\nTTFT over %s, %v hit (speed-up with overlap, at MFU %s):\n", p.text, share(r.Hit), r.MFURange.text("%.2g", " to "))
		p.writeRows(&b)
	}
	r.writeRecords(&b)
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
	gpus := fmt.Sprintf("%dx%s", r.GPUs, r.GPU)
	if r.Hosts > 1 {
		gpus = fmt.Sprintf("%dx%dx%s", r.Hosts, r.GPUs/r.Hosts, r.GPU)
	}
	fact("instance", "%s on %s, TP %d, KV in %s", name, gpus, r.TP, r.KVDType)
	fact("layers", "%s", strings.Join(r.Layers, ", "))
	memory := "the GPUs' memory is not known"
	if r.GPUMemory > 0 {
		memory = "the GPUs have " + decimalText(r.GPUMemory)
	}
	params := countText(r.Params) + " parameters"
	if r.mixture {
		params += fmt.Sprintf(", %s used for each token", countText(r.ActiveParam))
	} else if r.Params > r.ActiveParam {
		params += fmt.Sprintf(", %s without embeddings", countText(r.ActiveParam))
	}
	fact("weights", "%s (%s); %s", decimalText(r.WeightBytes), params, memory)
	fact("prefill", "%s tokens/s at %s tokens (%s to %s): %.4g TFLOPS, MFU %.2g (%s is plausible)", comma(int(r.PrefillTokens)), comma(r.ContextTokens),
		comma(int(r.PrefillRange.Low)), comma(int(r.PrefillRange.High)), r.PeakTFLOPS, r.MFU, r.MFURange.text("%.2g", " to "))
	if r.FloorMs > 0 {
		fact("shortest pass", "%s: reading the weights once from GPU memory", secondsText(r.FloorMs))
	}
	ranks := "on each rank"
	if r.latent {
		ranks = "on each rank, the same on all (MLA): loaded once"
		if r.Hosts > 1 {
			ranks += " for each host"
		}
	}
	fact("KV per token", "%s of the instance, %s %s", sizeText(r.InstanceBytes), sizeText(r.RankBytes), ranks)
	if r.StateBytes > 0 {
		fact("states", "%s for a prompt of any length, loaded with each hit", sizeText(r.StateBytes))
	}
	at := r.at(r.Pipes[0])
	loads := fmt.Sprintf("%s for %s tokens", sizeText(at.LoadBytes), comma(at.CachedTokens))
	switch {
	case r.windowed && r.wholeWindows:
		loads += ", of every layer"
	case r.windowed:
		loads += ", of layers with a window only what it needs; a connector that gives all layers the same blocks loads more (--whole-windows)"
	}
	fact("hit", "%s", loads)
	fact("KV of the context", "%s, in blocks of %s (%d tokens)", sizeText(r.ContextBytes), sizeText(r.BlockBytes), r.BlockTokens)
	switch e := at.BreakEvenRange; {
	case at.CachedTokens == 0:
	case at.BreakEvenPerSec == nil:
		fact("break even", "at no bandwidth: the overhead of a load takes longer than computing the hit")
	case e.Low == 0 || e.High == 0:
		fact("break even", "%s for the hit, overhead included; at MFU %.2g no bandwidth is enough", rateText(*at.BreakEvenPerSec), r.MFURange.High)
	default:
		fact("break even", "%s for the hit, overhead included (%s to %s): below it, loading takes longer than computing", rateText(*at.BreakEvenPerSec), rateText(e.Low), rateText(e.High))
	}
	if r.Capacity != nil {
		fact("capacity", "%s hold %s tokens, %s conversations of %s", sizeText(r.Capacity.Bytes),
			humanize.Comma(r.Capacity.Tokens), humanize.Comma(r.Capacity.Conversations), comma(r.ContextTokens))
	}
	t.Flush()
}

func (p planPipe) writeRows(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "tokens\tto load\tbreak even\tcompute\tloaded\toverlapped\tideal\tspeed-up\trange\tbound by\t")
	for _, row := range p.Contexts {
		breakEven := "never"
		if row.BreakEvenPerSec != nil {
			breakEven = rateText(*row.BreakEvenPerSec)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", comma(row.Tokens), sizeText(row.LoadBytes), breakEven,
			secondsText(row.FullComputeMs), secondsText(row.LoadedMs), secondsText(row.OverlappedMs), secondsText(row.IdealMs),
			threeDigits(row.Speedup), threeDigits(row.SpeedupRange.Low)+"-"+threeDigits(row.SpeedupRange.High), row.Bound)
	}
	t.Flush()
}

// writeRecords writes what UCM measured beside the predictions.
func (r *plan) writeRecords(b *strings.Builder) {
	if len(r.Measured) > 0 {
		r.writeMeasured(b)
	}
	for _, note := range r.MeasuredNotes {
		b.WriteString("\n" + note + "\n")
	}
}

func (r *plan) writeMeasured(b *strings.Builder) {
	fmt.Fprintf(b, "\nMeasured on such an instance (%s; requests that arrive together, two storage nodes), beside the prediction over %s if they run one after the other:\n", r.Measured[0].Source, r.Pipes[0].text)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "requests\ttokens\tcompute, measured\tpredicted\trange\t80% hit, measured\tloaded\toverlapped\t")
	for _, m := range r.Measured {
		p := m.Predicted
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", m.Concurrent, comma(m.Tokens), secondsText(m.FullComputeMs), secondsText(p.FullComputeMs),
			secondsText(p.FullComputeRange.Low)+" - "+secondsText(p.FullComputeRange.High), secondsText(m.Hit80Ms), secondsText(p.LoadedMs), secondsText(p.OverlappedMs))
	}
	t.Flush()
}

// decimalText writes a size in powers of 1000, as is usual for GPU memory.
func decimalText(bytes float64) string {
	switch {
	case bytes < 999.5e6:
		return threeDigits(bytes/1e6) + " MB"
	case bytes < 9_999.5e9:
		return threeDigits(bytes/1e9) + " GB"
	}
	return threeDigits(bytes/1e12) + " TB"
}

// countText writes a number of parameters.
func countText(n float64) string {
	if n < 999.5e6 {
		return threeDigits(n/1e6) + "M"
	}
	return threeDigits(n/1e9) + "B"
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
