package workload

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// maxWrong is the number of wrong blocks, and of errors of a rank, that are reported one by
// one; the rest are counted.
const maxWrong = 10

// Report is what a replay did. Sizes count all ranks together. Blocks count once, however
// many ranks hold a slice.
type Report struct {
	Trace      string `json:"trace"`
	Ranks      int    `json:"ranks"`
	Depth      int    `json:"depth"`
	BlockBytes int64  `json:"block_bytes"`
	MaxBlocks  int64  `json:"max_blocks"`

	ElapsedSeconds float64 `json:"elapsed_seconds"`
	// MaxLagSeconds is how far the replay fell behind the trace's pace.
	MaxLagSeconds float64 `json:"max_lag_seconds"`

	Requests int   `json:"requests"`
	Tokens   int64 `json:"tokens"`
	Blocks   int64 `json:"blocks"`

	HitTokens      int64   `json:"hit_tokens"`
	HitBlocks      int64   `json:"hit_blocks"`
	HitTokensRatio float64 `json:"hit_tokens_ratio"`
	HitBlocksRatio float64 `json:"hit_blocks_ratio"`
	// EarlierHitBlocks are hits that this replay has not written itself.
	EarlierHitBlocks int64 `json:"earlier_hit_blocks"`

	StoredBlocks  int64 `json:"stored_blocks"`
	SkippedBlocks int64 `json:"skipped_blocks"`  // not written because of MaxBlocks
	NoSpaceBlocks int64 `json:"no_space_blocks"` // not written because the disk is full
	// VanishedSlices were found and then evicted before they were opened.
	VanishedSlices int64 `json:"vanished_slices"`

	// Seconds are those in which the slowest rank of each request was loading or storing,
	// without filling and checking memory.
	LoadBytes    int64   `json:"load_bytes"`
	LoadSeconds  float64 `json:"load_seconds"`
	StoreBytes   int64   `json:"store_bytes"`
	StoreSeconds float64 `json:"store_seconds"`

	Lookup       LatencySummary `json:"lookup"`        // of a request, on all ranks
	RequestLoad  LatencySummary `json:"request_load"`  // of all hits of a request
	BlockLoad    LatencySummary `json:"block_load"`    // of a slice, from open to completion
	RequestStore LatencySummary `json:"request_store"` // of all misses of a request
	BlockStore   LatencySummary `json:"block_store"`   // of a slice, from create to rename

	Errors      int64        `json:"errors"`
	WrongBlocks int64        `json:"wrong_blocks"` // slices
	WrongBytes  int64        `json:"wrong_bytes"`
	Wrong       []WrongBlock `json:"wrong,omitempty"` // the first few

	lookup, load, store *latencies
}

func newReport(o ReplayOptions) *Report {
	return &Report{
		Ranks: o.Ranks, Depth: o.Depth, BlockBytes: o.BlockBytes,
		lookup: newLatencies(), load: newLatencies(), store: newLatencies(),
	}
}

// finish adds up the counts of the ranks and computes ratios and quantiles.
func (r *Report) finish(ranks []*rank) {
	blockLoad, blockStore := newLatencies(), newLatencies()
	for _, k := range ranks {
		r.LoadBytes += k.loaded * r.BlockBytes
		r.StoreBytes += k.stored * r.BlockBytes
		r.VanishedSlices += k.vanished
		r.Errors += k.errors
		r.WrongBlocks += k.wrongBlocks
		r.WrongBytes += k.wrongBytes
		r.Wrong = append(r.Wrong, k.wrong...)
		blockLoad.merge(k.blockLoad)
		blockStore.merge(k.blockStore)
	}
	r.Wrong = r.Wrong[:min(len(r.Wrong), maxWrong)]
	r.HitTokensRatio = ratio(r.HitTokens, r.Tokens)
	r.HitBlocksRatio = ratio(r.HitBlocks, r.Blocks)
	r.Lookup, r.RequestLoad, r.RequestStore = r.lookup.summary(), r.load.summary(), r.store.summary()
	r.BlockLoad, r.BlockStore = blockLoad.summary(), blockStore.summary()
}

// verdict returns the error that the report amounts to, or nil.
func (r *Report) verdict() error {
	var errs []error
	if r.WrongBytes > 0 {
		errs = append(errs, fmt.Errorf("%s wrong bytes in %s blocks", countText(r.WrongBytes), countText(r.WrongBlocks)))
	}
	if r.Errors > 0 {
		errs = append(errs, fmt.Errorf("%s I/O errors", countText(r.Errors)))
	}
	if r.NoSpaceBlocks > 0 {
		errs = append(errs, fmt.Errorf("no space left: %s blocks were not written; make room, or cap the replay with --max-blocks", countText(r.NoSpaceBlocks)))
	}
	return errors.Join(errs...)
}

// WrongBlock is a slice of a block that was not read as it was written.
type WrongBlock struct {
	Block      uint64 `json:"block"`
	Rank       int    `json:"rank"`
	Path       string `json:"path"`
	Kept       string `json:"kept,omitempty"` // where the file is now; the block is written again
	WrongBytes int    `json:"wrong_bytes"`
	SizeBytes  int64  `json:"size_bytes"`
	// GotBytes is less than SizeBytes for a read that ended early.
	GotBytes   int    `json:"got_bytes"`
	FirstWrong int    `json:"first_wrong"` // offset
	Expected   string `json:"expected"`    // hex, from FirstWrong on
	Actual     string `json:"actual"`
}

func describeWrong(b *inFlight, rank int, got []byte, wrong, first int, size int64) WrongBlock {
	want := make([]byte, size)
	contentOf(b.id, rank).Fill(want)
	const shown = 16
	part := func(p []byte) string { return fmt.Sprintf("%x", p[min(first, len(p)):min(first+shown, len(p))]) }
	return WrongBlock{
		Block: b.id, Rank: rank, Path: b.path, WrongBytes: wrong, SizeBytes: size, GotBytes: len(got),
		FirstWrong: first, Expected: part(want), Actual: part(got),
	}
}

// String describes the damage in one line.
func (w WrongBlock) String() string {
	what := fmt.Sprintf("WRONG block %#x rank %d (%s): %d of %d bytes wrong, the first at offset %d: expected %s, got ",
		w.Block, w.Rank, w.Path, w.WrongBytes, w.SizeBytes, w.FirstWrong, w.Expected)
	switch {
	case w.Actual == "":
		what += fmt.Sprintf("nothing: the read ended after %d bytes", w.GotBytes)
	case strings.Trim(w.Actual, "0") == "":
		what += w.Actual + ", zeros as in a hole"
	default:
		what += w.Actual
	}
	if w.Kept != "" {
		what += "; kept as " + w.Kept
	}
	return what
}

// WriteTable writes the report for people. unlimited is the survey of the
// trace, or nil.
func (r *Report) WriteTable(w io.Writer, unlimited *Survey) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s requests of %s in %s; ranks: %d, in flight: %d blocks of %s each\n\n",
		countText(int64(r.Requests)), r.Trace, secondsText(r.ElapsedSeconds), r.Ranks, r.Depth, measure.SizeText(r.BlockBytes))

	fmt.Fprintf(&b, "hits      %6.2f %% of tokens  (%s of %s)\n", 100*r.HitTokensRatio, countText(r.HitTokens), countText(r.Tokens))
	fmt.Fprintf(&b, "          %6.2f %% of blocks  (%s of %s", 100*r.HitBlocksRatio, countText(r.HitBlocks), countText(r.Blocks))
	if r.EarlierHitBlocks > 0 {
		fmt.Fprintf(&b, "; %s were there from earlier", countText(r.EarlierHitBlocks))
	}
	b.WriteString(")\n")
	if unlimited != nil && unlimited.Requests == r.Requests {
		fmt.Fprintf(&b, "          %6.2f %% of tokens is what an empty cache of unlimited size would have served\n", 100*ratio(unlimited.HitTokens, unlimited.Tokens))
	}
	fmt.Fprintf(&b, "misses    %s blocks written", countText(r.StoredBlocks))
	if r.SkippedBlocks > 0 {
		fmt.Fprintf(&b, ", %s skipped: the cap is %s (--max-blocks)", countText(r.SkippedBlocks), countText(r.MaxBlocks))
	}
	if r.NoSpaceBlocks > 0 {
		fmt.Fprintf(&b, ", %s NOT written: no space left", countText(r.NoSpaceBlocks))
	}
	b.WriteString("\n")
	if r.VanishedSlices > 0 {
		fmt.Fprintf(&b, "          %s slices were evicted between lookup and load\n", countText(r.VanishedSlices))
	}
	if r.MaxLagSeconds > 0 {
		fmt.Fprintf(&b, "pace      up to %s behind the trace\n", secondsText(r.MaxLagSeconds))
	}

	fmt.Fprintf(&b, "\n%-22s %10s %10s %10s %10s %10s %10s\n", "", "count", "p50", "p99", "max", "bytes", "GB/s")
	row := func(name string, l LatencySummary, bytes int64, seconds float64) {
		moved, rate := "", ""
		if seconds > 0 {
			moved, rate = measure.SizeText(bytes), fmt.Sprintf("%.2f", float64(bytes)/seconds/1e9)
		}
		line := fmt.Sprintf("%-22s %10s %10s %10s %10s %10s %10s", name, countText(l.Count), l.P50.text(l), l.P99.text(l), l.Max.text(l), moved, rate)
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	row("lookup, a request", r.Lookup, 0, 0)
	row("load, a request", r.RequestLoad, r.LoadBytes, r.LoadSeconds)
	row("load, a block", r.BlockLoad, 0, 0)
	row("store, a request", r.RequestStore, r.StoreBytes, r.StoreSeconds)
	row("store, a block", r.BlockStore, 0, 0)

	fmt.Fprintf(&b, "\nI/O errors: %s   wrong bytes: %s\n", countText(r.Errors), countText(r.WrongBytes))
	_, err := io.WriteString(w, b.String())
	return err
}

// Micros is a duration in microseconds.
type Micros float64

func (m Micros) text(l LatencySummary) string {
	switch {
	case l.Count == 0:
		return "-"
	case m < 1000:
		return fmt.Sprintf("%.1f us", float64(m))
	case m < 1e6:
		return fmt.Sprintf("%.2f ms", float64(m)/1e3)
	}
	return fmt.Sprintf("%.2f s", float64(m)/1e6)
}

// LatencySummary is a distribution of latencies in a few numbers.
type LatencySummary struct {
	Count int64  `json:"count"`
	P50   Micros `json:"p50_us"`
	P99   Micros `json:"p99_us"`
	Max   Micros `json:"max_us"`
}

// latencies is a distribution of latencies from a nanosecond to an hour, with three digits.
type latencies struct{ h *hdrhistogram.Histogram }

func newLatencies() *latencies {
	return &latencies{hdrhistogram.New(1, int64(time.Hour), 3)}
}

func (l *latencies) record(d time.Duration) {
	_ = l.h.RecordValue(int64(max(1, min(d, time.Hour)))) // in range, so it cannot fail
}

func (l *latencies) merge(other *latencies) { l.h.Merge(other.h) }

func (l *latencies) summary() LatencySummary {
	us := func(ns int64) Micros { return Micros(float64(ns) / 1e3) }
	return LatencySummary{
		Count: l.h.TotalCount(),
		P50:   us(l.h.ValueAtPercentile(50)),
		P99:   us(l.h.ValueAtPercentile(99)),
		Max:   us(l.h.Max()),
	}
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func countText(n int64) string { return humanize.Comma(n) }
func secondsText(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond).String()
}
