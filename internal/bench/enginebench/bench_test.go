package enginebench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// quick returns the options of a bench with few bytes and short times.
func quick(name string, s *shelf) Options {
	return Options{
		Workload: name, Open: s.open, Store: "Posix", Scale: 2048, TimeScale: 20,
		Bandwidth: 40 << 30, Latency: time.Millisecond, Models: []string{"QwQ-32B"},
	}
}

func run(t *testing.T, o Options) *Report {
	t.Helper()
	rep, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if rep.WrongBytes != 0 || len(rep.Rows) == 0 {
		t.Fatalf("%+v", rep)
	}
	for _, r := range rep.Rows {
		if r.LostBlocks != 0 || r.FailedSaves != 0 {
			t.Errorf("%s: %d blocks lost, %d saves failed", r.Name, r.LostBlocks, r.FailedSaves)
		}
		if r.IdealMs <= 0 || r.IdealMs > r.MeasuredMs*1.0001 {
			t.Errorf("%s %d x%d: measured %.3f ms, and ideal is %.3f", r.Name, r.InputTokens, r.Concurrent, r.MeasuredMs, r.IdealMs)
		}
		if r.BoundMs < r.IdealMs || r.BoundMs > r.MeasuredMs*1.0001 {
			t.Errorf("%s %d x%d: measured %.3f ms, and %.3f is what the bandwidth allows", r.Name, r.InputTokens, r.Concurrent, r.MeasuredMs, r.BoundMs)
		}
	}
	return rep
}

func TestUCMTable(t *testing.T) {
	s := newShelf(t)
	o := quick(UCMTable, s)
	o.Models = []string{"QwQ-32B", "DeepSeek-R1"}
	o.PromptTokens, o.Concurrency, o.Runs, o.Scale = []int{4000, 8000}, []int{1, 2}, 2, 2048
	var done, of int
	o.Done = func(n, total int) { done, of = n, total }
	rep := run(t, o)
	if len(rep.Rows) != 8 || done != 20 || of != 20 {
		t.Fatalf("%d rows; %d of %d done", len(rep.Rows), done, of)
	}
	// One opening for each run of each model, and one to fill the store.
	if s.opened != 2*(1+8) {
		t.Errorf("opened %d times", s.opened)
	}
	for _, r := range rep.Rows {
		if r.HitTokensRatio != 0.8 {
			t.Errorf("%s %d x%d: a hit of %v", r.Model, r.InputTokens, r.Concurrent, r.HitTokensRatio)
		}
		if r.UCM == nil || r.UCM.IdealShare <= 0 {
			t.Fatalf("%s %d x%d: no figure of UCM's", r.Model, r.InputTokens, r.Concurrent)
		}
		// The computed time is the published one.
		if d := r.FullMs/r.UCM.FullMs - 1; d > 1e-3 || d < -1e-3 {
			t.Errorf("%s %d x%d: full compute %.2f ms; published are %.2f", r.Model, r.InputTokens, r.Concurrent, r.FullMs, r.UCM.FullMs)
		}
		if want := int64(2*r.Concurrent*r.InputTokens) * 8 / 10 / 128 * r.BlockBytes; r.LoadedBytes != want {
			t.Errorf("%d bytes loaded, not %d", r.LoadedBytes, want)
		}
	}
	// Blocks of an earlier bench change nothing.
	if again := run(t, o); again.Rows[0].HitTokensRatio != 0.8 {
		t.Errorf("the second time a hit of %v", again.Rows[0].HitTokensRatio)
	}
}

// Blocks that the store has and does not load count against it.
func TestUCMTableOfAStoreThatLoses(t *testing.T) {
	s := newShelf(t)
	o := quick(UCMTable, s)
	o.PromptTokens, o.Concurrency, o.Runs = []int{4000}, []int{1}, 1
	good := run(t, o).Rows[0]
	s.beforeRun = sync.OnceFunc(func() { s.flip("") })
	rep, err := Run(t.Context(), o)
	if lost := lossOf(t, err); lost.Blocks != 25 || lost.Saves != 0 {
		t.Errorf("%+v", lost)
	}
	if r := rep.Rows[0]; r.LostBlocks != 25 || r.HitTokens != 0 || r.IdealMs != good.IdealMs || r.IdealShare > 0.25 {
		t.Errorf("%+v", r)
	}
}

func TestRandomTwice(t *testing.T) {
	o := quick(RandomTwice, newShelf(t))
	o.Prompts, o.PromptTokens = 4, []int{2000}
	rep := run(t, o)
	if len(rep.Rows) != 2 || rep.Rows[0].HitTokens != 0 || rep.Rows[1].HitTokens != 4*1920 {
		t.Fatalf("%+v", rep.Rows)
	}
	if first, second := rep.Rows[0], rep.Rows[1]; first.LoadedBytes != 0 || first.SavedBytes != 60*first.BlockBytes || second.SavedBytes != 0 || first.SaveMs <= 0 || second.SaveMs != 0 {
		t.Errorf("%+v", rep.Rows)
	}
}

// The command of UCM's document prints, of each run, the figures of engine benchmarks, the blocks
// hit of a request's 125, and what UCM publishes.
func TestRandomTwiceAsPublished(t *testing.T) {
	o := quick(RandomTwice, newShelf(t))
	dir := filepath.Join(t.TempDir(), "segments") // 1500 files would take a while
	o.Store, o.Open = "Segment", func(_ context.Context, w Want) (*kvstore.Store, error) {
		return kvstore.Open("Segment", kvstore.Config{
			Namespace: w.Namespace, Layout: w.Layout, Speed: w.Speed,
			Segment: &kvstore.SegmentOptions{Dir: dir, CapacityBytes: 64 << 20, SegmentBytes: 8 << 20},
		})
	}
	o.Models, o.Seed, o.Scale, o.TimeScale = nil, 123456, 8192, 200 // the document's model, by default
	rep := run(t, o)
	var text strings.Builder
	if err := rep.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, line := range []string{
		"================== first run ===================",
		"Successful requests:                     12\n",
		"Total input tokens:                      192000\n",
		"Total generated tokens:                  24\n",
		"Mean TTFT (ms): ", "Median TTFT (ms): ", "P90 TTFT (ms): ", "P99 TTFT (ms): ",
		"Mean TPOT (ms): ", "Median TPOT (ms): ", "P90 TPOT (ms): ", "P99 TPOT (ms): ",
		"Mean ITL (ms): ", "Median ITL (ms): ", "P90 ITL (ms): ", "P99 ITL (ms): ",
		"Mean E2EL (ms): ", "Median E2EL (ms): ", "P90 E2EL (ms): ", "P99 E2EL (ms): ",
		"blocks hit: 0 of 125 in each request\n",
		"UCM publishes a mean TTFT of 7270.95 ms for this run\n",
		"================== second run ==================",
		"Successful requests:                     12\n",
		"Mean TTFT (ms): ", "Mean TPOT (ms): ", "Mean ITL (ms): ", "Mean E2EL (ms): ",
		"blocks hit: 125 of 125 in each request\n",
		"UCM publishes a mean TTFT of 1560.84 ms for this run\n",
		"seed 123456",
	} {
		from := at
		if strings.HasPrefix(line, "seed") {
			from = 0
		}
		found := strings.Index(text.String()[from:], line)
		if found < 0 {
			t.Fatalf("no %q where it belongs in\n%s", line, text.String())
		}
		at = from + found
	}
}

// Requests look up when they are scheduled, one ahead of the GPUs, and not when they arrive. Of
// four equal prompts that arrive together the third is scheduled when the first has been computed,
// and finds it in the engine's memory; so does the fourth.
func TestRequestsLookUpWhenScheduled(t *testing.T) {
	const prompts, tokens = 4, 2048
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	line := fmt.Sprintf("{\"timestamp\": 0, \"input_length\": %d, \"output_length\": 1, \"hash_ids\": [1, 2, 3, 4]}\n", tokens)
	if err := os.WriteFile(path, []byte(strings.Repeat(line, prompts)), 0o644); err != nil {
		t.Fatal(err)
	}
	o := quick(Trace, newShelf(t))
	o.TracePath, o.Concurrency, o.BlockTokens, o.EngineMemory = path, []int{prompts}, 128, 8<<30
	r := run(t, o).Rows[0]
	if each := r.Blocks / prompts; r.Requests != prompts || r.MemoryBlocks < (prompts-2)*each || each == 0 {
		t.Errorf("%d of %d blocks of %d requests were in memory; the last two could have all of theirs", r.MemoryBlocks, r.Blocks, r.Requests)
	}
}

func TestSharedPrefix(t *testing.T) {
	o := quick(SharedPrefix, newShelf(t))
	o.Groups, o.Queries, o.PromptTokens, o.Concurrency, o.EngineMemory = 3, 4, []int{1000}, []int{1}, NoEngineMemory
	cold := o
	o.ColdNode = func(ctx context.Context, scale int64, seed uint64) (*Report, error) {
		cold.Scale, cold.Seed, cold.IsColdNode = scale, seed, true
		return Run(ctx, cold)
	}
	rep := run(t, o)
	if len(rep.Rows) != 2 || rep.Rows[0].Name != warmStore || rep.Rows[1].Name != coldStart {
		t.Fatalf("%+v", rep.Rows)
	}
	// 1000 tokens are seven blocks and a part of the eighth, which no two queries share.
	// A query may come before the blocks of the query before it are saved.
	if got := rep.Rows[0].HitTokens; got > 3*3*7*128 || got%128 != 0 {
		t.Errorf("%d tokens hit on the first node", got)
	}
	if got := rep.Rows[1].HitTokens; got != 3*4*7*128 {
		t.Errorf("%d tokens hit on the cold node", got)
	}
	o.NoCold = true
	if rep := run(t, o); len(rep.Rows) != 1 || rep.Rows[0].Name != warmStore {
		t.Errorf("without the cold node: %+v", rep.Rows)
	}
}

// writeTrace writes a trace of so many requests.
func writeTrace(t *testing.T, requests int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := workload.Generate(f, workload.GenerateOptions{Requests: requests, Seed: 3, QuestionTokens: 500, MaxInputTokens: 8192, RatePerSecond: 2}); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTrace(t *testing.T) {
	path := writeTrace(t, 60)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	survey, err := workload.TakeSurvey(workload.NewReader(f, path), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, speed := range []float64{0, 4} {
		o := quick(Trace, newShelf(t))
		o.TracePath, o.Speed, o.Concurrency, o.BlockTokens = path, speed, []int{1}, 128
		rep := run(t, o)
		r := rep.Rows[0]
		if r.Requests != 60 || r.Tokens != survey.Tokens || r.Distribution == nil || len(r.Timeline) == 0 {
			t.Fatalf("%+v", r)
		}
		// Blocks of 128 tokens can hit at least as much as whole ids of 512, and do, unless the
		// request before has not been saved yet: on a busy machine, many have not.
		if could := r.InfiniteTokensRatio * float64(r.Tokens); could < float64(survey.HitBlocks*512*9/10) {
			t.Errorf("%.0f tokens could hit; ids alone give %d", could, survey.HitTokens)
		}
		if speed == 0 && r.HitTokens < survey.HitBlocks*512/2 {
			t.Errorf("%d tokens hit; ids alone give %d", r.HitTokens, survey.HitTokens)
		}
		if speed > 0 && r.Concurrent != 0 {
			t.Errorf("%d at once though they come at their own pace", r.Concurrent)
		}
	}
	o := quick(Trace, newShelf(t))
	o.TracePath, o.MaxRequests = path, 7
	if rep := run(t, o); rep.Rows[0].Requests != 7 {
		t.Errorf("%d requests", rep.Rows[0].Requests)
	}
}

// Both ways to load count the same bytes; only the time differs.
func TestLoadWhole(t *testing.T) {
	o := quick(UCMTable, newShelf(t))
	o.PromptTokens, o.Concurrency, o.Runs, o.Load = []int{4000}, []int{1}, 1, LoadWhole
	// So slow that loading takes longer than computing, on any machine.
	o.Bandwidth = 1 << 30
	whole := run(t, o).Rows[0]
	loading := float64(25*128*256<<10) / (1 << 30) * 1000 // ms
	if whole.MeasuredMs < whole.IdealMs+loading {
		t.Errorf("%.1f ms, with %.1f of loading and %.1f of computing after it", whole.MeasuredMs, loading, whole.IdealMs)
	}
}

func TestWrongBytesEndTheRun(t *testing.T) {
	s := newShelf(t)
	o := quick(RandomTwice, s)
	o.Prompts, o.PromptTokens, o.Seed = 2, []int{1000}, 7
	s.checksums = kvstore.ChecksumsOff
	o.Done = func(done, _ int) {
		if done == 2 { // all blocks of the first pass are saved
			s.flip(s.block(o, 0, 3))
		}
	}
	rep, err := Run(t.Context(), o)
	var wrong *WrongBytesError
	if !errors.As(err, &wrong) || wrong.Bytes != 1 || wrong.Blocks != 1 || rep.WrongBytes != 1 {
		t.Fatalf("%v, %+v", err, rep)
	}
	if !strings.Contains(err.Error(), "1 wrong bytes") {
		t.Error(err)
	}
	if len(rep.Rows) == 0 || rep.Rows[0].Name != firstRun {
		t.Errorf("what was complete is not reported: %+v", rep.Rows)
	}
}

// block returns the name of the n-th block of a prompt of random-twice.
func (s *shelf) block(o Options, prompt uint64, n int) string {
	s.Helper()
	chain, err := keys.NewChain(s.namespace)
	if err != nil {
		s.Fatal(err)
	}
	return chain.Keys(streamOf(ofTwice, o.Seed, prompt).appendTo(nil, 0, o.PromptTokens[0]))[n].String()
}

// lossOf returns the error of a bench whose store lost something.
func lossOf(t *testing.T, err error) *LossError {
	t.Helper()
	var lost *LossError
	if !errors.As(err, &lost) {
		t.Fatalf("ended with %v", err)
	}
	return lost
}

// A block that is found but not loaded is computed.
func TestLostBlocks(t *testing.T) {
	s := newShelf(t)
	o := quick(RandomTwice, s)
	o.Prompts, o.PromptTokens, o.Seed = 1, []int{1280}, 7
	o.Done = func(done, _ int) {
		if done == 1 {
			s.flip(s.block(o, 0, 3))
		}
	}
	rep, err := Run(t.Context(), o)
	if lost := lossOf(t, err); lost.Blocks != 7 || lost.Causes["damaged"] == 0 {
		t.Errorf("%+v", lost)
	}
	if r := rep.Rows[1]; r.HitTokens != 3*128 || r.LostBlocks != 7 || r.SavedBytes != 7*r.BlockBytes {
		t.Errorf("%+v", r)
	}
}

func TestInterrupted(t *testing.T) {
	o := quick(RandomTwice, newShelf(t))
	o.Prompts, o.PromptTokens, o.Concurrency = 4, []int{1000}, []int{1}
	ctx, cancel := context.WithCancel(t.Context())
	o.Done = func(done, _ int) {
		if done == 5 {
			cancel()
		}
	}
	rep, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) || !rep.Interrupted || len(rep.Rows) != 2 || rep.Rows[0].Requests != 4 || rep.Rows[1].Requests < 1 {
		t.Errorf("%v: %+v", err, rep)
	}
}

func TestBadOptions(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	if err := os.WriteFile(bad, []byte(`{"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [1, 2]}`+"\n"+`{"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [1]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Options){
		"did you mean ucm-table?":         func(o *Options) { o.Workload = "ucm-tabel" },
		"did you mean layers?":            func(o *Options) { o.Load = "layer" },
		"similar names: QwQ-32B":          func(o *Options) { o.Models = []string{"QwQ-23B"} },
		"similar names: H100":             func(o *Options) { o.Models = []string{"QwQ-32B@2xH10"} },
		"write QwQ-32B@2xH100":            func(o *Options) { o.Models = []string{"QwQ-32B@H100"} },
		"a power of two up to 524288":     func(o *Options) { o.Scale = 1000 },
		"which is two blocks":             func(o *Options) { o.PromptTokens = []int{200} },
		"takes one model, not 2":          func(o *Options) { o.Workload, o.Models = RandomTwice, []string{"QwQ-32B", "Qwen3-8B"} },
		"the workload trace needs a file": func(o *Options) { o.Workload = Trace },
		"ucm-table takes no file":         func(o *Options) { o.TracePath = bad },
		"kv3fs trace generate":            func(o *Options) { o.Workload, o.TracePath = Trace, bad+"x" },
		"bad.jsonl:2: 1 hash_ids":         func(o *Options) { o.Workload, o.TracePath = Trace, bad },
		"there is space for":              func(o *Options) { o.FreeBytes = 1 << 20 },
		"even at 1/":                      func(o *Options) { o.Scale, o.FreeBytes = 0, 1<<10 },
		"--groups does nothing for ucm-table: it is for shared-prefix; leave it out": func(o *Options) { o.Groups = 3 },
		"--runs does nothing for random-twice":                                       func(o *Options) { o.Workload, o.Runs = RandomTwice, 2 },
		"--speed does nothing for shared-prefix":                                     func(o *Options) { o.Workload, o.Speed = SharedPrefix, 2 },
		"--prompt-tokens does nothing for trace":                                     func(o *Options) { o.Workload, o.TracePath, o.PromptTokens = Trace, bad, []int{4000} },
		"a hit of 100 percent":                                                       func(o *Options) { o.HitPercent = 100 },
		"takes one length of prompts":                                                func(o *Options) { o.Workload, o.PromptTokens = RandomTwice, []int{1000, 2000} },
		"and one number at once":                                                     func(o *Options) { o.Workload, o.Concurrency = RandomTwice, []int{1, 2} },
		"0 requests at once":                                                         func(o *Options) { o.Concurrency = []int{0} },
		"a time scale of 0.5":                                                        func(o *Options) { o.TimeScale = 0.5 },
		"no store to open":                                                           func(o *Options) { o.Open = nil },
	} {
		o := quick(UCMTable, newShelf(t))
		change(&o)
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func TestReportIsJSON(t *testing.T) {
	o := quick(RandomTwice, newShelf(t))
	o.Prompts, o.PromptTokens = 1, []int{1000}
	text, err := json.Marshal(run(t, o))
	var back Report
	if err != nil || json.Unmarshal(text, &back) != nil || len(back.Rows) != 2 {
		t.Fatalf("%v: %s", err, text)
	}
}
