package enginebench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// example returns a report with everything that a page may show.
func example(workload string) *Report {
	r := &Report{
		Workload: workload, Store: "Cache|Ds3fs", Storage: `/mnt/<b>"a&b"`, Load: LoadLayers, BlockTokens: 128,
		Scale: 64, ScaleChosen: true, CopyGBps: 11.25, Bandwidth: 40 << 30, LatencyMs: 1, TimeScale: 1, Runs: 3, CPUs: 2,
		Seed: 123456, OutputTokens: 1,
	}
	row := Row{
		Model: "QwQ-32B", Hardware: "2xH100", InputTokens: 4000, Concurrent: 1, Requests: 3, Blocks: 93, HitBlocks: 75, HitTokensRatio: 0.8, InfiniteTokensRatio: 0.8,
		FullMs: 268.28, MeasuredMs: 58, IdealMs: 55.3, P50Ms: 57.9, P99Ms: 58.4, Speedup: 4.625, IdealSpeedup: 4.851, IdealShare: 0.9534,
		UCM:    &Published{268.28, 116.19, 2.309, 0.476},
		HashMs: 0.31, LookupMs: 0.42, LookupP99Ms: 0.61, FirstLayerMs: 1.3, StallMs: 1.4,
		Serving:     &Serving{Requests: 3, OutputTokens: 3, TTFT: Latency{58, 57.9, 58.3, 58.4}, E2EL: Latency{58, 57.9, 58.3, 58.4}},
		LoadedBytes: 3 * 12 << 20, LoadGBps: 0.66, FullGBps: 42.1, SaveMs: 2.25, SavedBytes: 9 << 20,
	}
	if workload == UCMTable {
		long := row
		long.InputTokens, long.FullMs, long.MeasuredMs, long.IdealMs, long.IdealShare = 32_000, 2544, 640, 608, 0.95
		both := long
		both.Concurrent, both.UCM = 8, nil
		r.Rows = []Row{row, long, both}
		return r
	}
	r.OutputTokens, r.ChunkTokens, r.EngineMemory, r.Order, r.MFU = 64, 8192, 55<<30, Shuffled, 0.5
	row.UCM, row.Name = nil, warmStore
	row.Serving = &Serving{
		Requests: 20, Seconds: 10, InputTokens: 80_000, OutputTokens: 1280, RequestsPerSecond: 2, OutputTokensPerSecond: 128, TokensPerSecond: 8128,
		TTFT: Latency{58, 57.9, 58.3, 58.4}, TPOT: Latency{10, 9.5, 12, 30}, ITL: Latency{10, 9, 13, 44.25}, E2EL: Latency{688, 690, 700, 710},
	}
	row.BoundMs, row.BoundShare = 57, 0.9828
	row.Distribution = &Distribution{[]float64{100, 200, 9000}, []float64{20, 60, 800}, []float64{10, 40, 700}}
	row.Requests = 20
	for i := range 5 {
		row.Timeline = append(row.Timeline, Moment{float64(i + 1), i, float64(i) / 5, 3 * float64(i)})
	}
	cold := row
	memory := row
	memory.Name, memory.Calculated, memory.HitBlocks, memory.HitTokensRatio, memory.MemoryBlocks, memory.MemoryTokensRatio = memoryOnly, true, 0, 0, 9, 0.1
	cold.Name, cold.BoundMs, cold.MeasuredMs, cold.BoundShare = coldStart, 90, 100, 0.9
	r.Rows = []Row{memory, row, cold}
	if workload == RandomTwice {
		row.Name, row.PublishedMs = secondRun, 1560.84
		r.Rows = []Row{row}
	}
	return r
}

func pageOf(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteHTML(&b, measure.Circumstances{Version: "1.2.3", Machine: "2 CPUs", Command: "kv3fs bench engine '<b>'"}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// elements counts a page's elements, and fails if they do not close as they should.
func elements(t *testing.T, page string) map[string]int {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Entity = xml.HTMLEntity
	counts := map[string]int{}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return counts
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok {
			counts[start.Name.Local]++
		}
	}
}

func TestPageIsWholeAndAlone(t *testing.T) {
	interrupted := example(Trace)
	interrupted.Interrupted, interrupted.WrongBytes, interrupted.Rows = true, 3, nil
	for name, c := range map[string]struct {
		r       *Report
		figures int
		tables  int
	}{
		UCMTable:      {example(UCMTable), 2 + 1, 2}, // a drawing for each concurrency, and the shares
		SharedPrefix:  {example(SharedPrefix), 1 + 3 + 6, 3},
		"interrupted": {interrupted, 0, 2},
	} {
		page := pageOf(t, c.r)
		counts := elements(t, page)
		if counts["svg"] != c.figures || counts["table"] != c.tables {
			t.Errorf("%s: %d drawings, %d tables", name, counts["svg"], counts["table"])
		}
		for _, foreign := range []string{"http://", "https://", "src=", "href=", "@import", "url(", "<script", "ZgotmplZ", "NaN", "Inf"} {
			if strings.Contains(page, foreign) {
				t.Errorf("%s: the page has %s", name, foreign)
			}
		}
		if strings.Contains(page, "<b>\"a") {
			t.Errorf("%s: a path became markup", name)
		}
		for _, scheme := range []string{"prefers-color-scheme: dark", `content="light dark"`} {
			if !strings.Contains(page, scheme) {
				t.Errorf("%s: no %s", name, scheme)
			}
		}
	}
	if page := pageOf(t, interrupted); !strings.Contains(page, "3 wrong bytes") || !strings.Contains(page, "Interrupted") {
		t.Error("the page does not say that the run went wrong")
	}
}

func TestPageShowsTheFigures(t *testing.T) {
	page := pageOf(t, example(UCMTable))
	for _, want := range []string{
		"measured: 58 ms at 4K tokens", "UCM: 116 ms at 4K tokens", "ideal: 55.3 ms at 4K tokens", "full compute: 268 ms at 4K tokens",
		"one at a time", "8 at once", "target 95 %", "measured: 95.3%", "UCM: 47.6%", ">4.62x<", ">36.0 MiB<",
		"of the ideal speed-up in the worst row: QwQ-32B, 32K tokens, 1 at once",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	page = pageOf(t, example(SharedPrefix))
	for _, want := range []string{"store, cold start: hit ratio", "store, cold start: loaded, GB/s", "an infinite cache: 80.0%", "engine memory only, calculated: 10.0% of", "out tok/s", "seed 123456", "seconds since the first request", "time to the first token", "store, warm: 80.0% of the tokens hit", "ideal, but for the bandwidth: 90 ms", "of 2.98x that the bandwidth allows", "of 4.85x that are possible"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// A label of the x axis is centred at its tick, and what is outside the drawing is cut off.
func TestLabelsFit(t *testing.T) {
	for _, workload := range Workloads() {
		r := example(workload)
		for i := range r.Rows { // the longest labels that duration makes, at both ends
			r.Rows[i].Distribution = &Distribution{[]float64{100, 180}, []float64{100, 180}, []float64{100, 180}}
		}
		for _, s := range r.sections() {
			for _, c := range s.Charts {
				for _, tick := range c.XTicks {
					const digit = 6.8 // width in 12 px system fonts
					if half := float64(len(tick.Label)) * digit / 2; tick.At+half > c.Width || tick.At < half {
						t.Errorf("%s: %s: %s: %q at %g of %g is cut off", workload, s.Title, c.Title, tick.Label, tick.At, c.Width)
					}
				}
			}
		}
	}
}

func TestTable(t *testing.T) {
	for _, name := range []string{UCMTable, SharedPrefix, RandomTwice} {
		var b bytes.Buffer
		if err := example(name).WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		checkWidth(t, b.String())
		golden := "testdata/" + name + ".txt"
		want, err := os.ReadFile(golden)
		if err != nil || string(want) != b.String() {
			if os.Getenv("REWRITE") != "" {
				os.WriteFile(golden, b.Bytes(), 0o644)
			}
			t.Errorf("%v; %s is not (REWRITE=1 makes it so)\n%s", err, golden, b.String())
		}
	}
}

func TestTicks(t *testing.T) {
	labels := func(ticks []tick) (all []string) {
		for _, tick := range ticks {
			all = append(all, tick.Label)
		}
		return all
	}
	c := newChart("", 500, 300)
	if got := labels(logTicks(c.y(50, 2000, true), 10, duration)); !slices.Equal(got, []string{"50 ms", "100 ms", "200 ms", "500 ms", "1 s", "2 s"}) {
		t.Error(got)
	}
	if got := labels(logTicks(c.x(1, 1e6, true), 7, duration)); !slices.Equal(got, []string{"1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s", "1e+03 s"}) {
		t.Error(got)
	}
	if got := labels(linearTicks(c.y(0, 15_000, false), duration)); len(got) < 3 || len(got) > 7 || got[0] != "0" {
		t.Error(got)
	}
	if low, high := around(0, 58, 612); low != 50 || high != 1000 {
		t.Error(low, high)
	}
	if low, high := around(); low >= high {
		t.Error(low, high)
	}
	if got := above(0.11, 0.02); math.Abs(got-0.15) > 1e-9 {
		t.Error(got)
	}
	y := c.y(0, 1, false)
	if y.at(0) != c.Plot.Bottom() || y.at(1) != c.Plot.Y {
		t.Error("the axis is upside down")
	}
}

// checkWidth checks that a report fits on a terminal.
func checkWidth(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > measure.Width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
