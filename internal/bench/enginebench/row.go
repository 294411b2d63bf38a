package enginebench

import (
	"cmp"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// pass is the requests of one kind: how they arrived, and the outcomes of each run in the
// order in which they were admitted.
type pass struct {
	name        string
	inputTokens int
	atOnce      int  // requests under way; 0: as they arrive
	stream      bool // one after the other, so that there is something to see over time
	calculated  bool // without a store
	tiers       []Tier
	runs        [][]outcome
}

// rowOf summarises a pass.
func rowOf(s *Subject, p pass, o Options) Row {
	row := Row{
		Name: p.name, Model: s.Name(), Hardware: s.Hardware(), Calculated: p.calculated,
		BlockBytes: s.layout.BlockBytes, ShardBytes: s.layout.ShardBytes,
		InputTokens: p.inputTokens, Concurrent: p.atOnce,
	}
	var full, ideal, measured spans
	var fullMeans, idealMeans, boundMeans, means []float64
	var hash, lookup, first, stall, save spans
	var loading time.Duration
	var earlier int // blocks
	for _, run := range p.runs {
		fullRun, idealRun, boundRun := p.calculate(s, run, o)
		var measuredRun spans
		for _, r := range run {
			measuredRun = append(measuredRun, r.first()-r.arrival)
			hash, lookup = append(hash, r.hash), append(lookup, r.lookup)
			stall = append(stall, r.stalled)
			if r.loadedBytes > 0 {
				first = append(first, r.firstLayer)
			}
			if r.savedBytes > 0 {
				save = append(save, r.save)
			}
			row.Requests++
			row.Tokens += int64(r.prompt)
			row.Blocks += len(r.keys)
			row.MemoryBlocks += r.memoryBlocks
			row.HitBlocks += r.hitBlocks
			earlier += r.earlierBlocks
			row.LoadedBytes += r.loadedBytes
			row.SavedBytes += r.savedBytes
			row.LostBlocks += r.lostBlocks
			row.FailedSaves += r.failedSaves
		}
		loading += underWay(run)
		fullMeans, idealMeans = append(fullMeans, fullRun.mean()), append(idealMeans, idealRun.mean())
		boundMeans, means = append(boundMeans, boundRun.mean()), append(means, measuredRun.mean())
		full, ideal, measured = append(full, fullRun...), append(ideal, idealRun...), append(measured, measuredRun...)
	}
	row.FullMs = measure.SpreadOf(fullMeans).Median
	row.IdealMs = measure.SpreadOf(idealMeans).Median
	row.BoundMs = measure.SpreadOf(boundMeans).Median
	row.MeasuredMs = measure.SpreadOf(means).Median
	row.P50Ms, row.P99Ms = measured.quantile(0.5), measured.quantile(0.99)
	row.HashMs, row.LookupMs, row.LookupP99Ms = hash.quantile(0.5), lookup.quantile(0.5), lookup.quantile(0.99)
	row.FirstLayerMs, row.StallMs = first.quantile(0.5), stall.mean()
	row.SaveMs = save.quantile(0.5)
	share := func(blocks int) float64 { return ratio(float64(blocks*s.blockTokens), float64(row.Tokens)) }
	row.HitTokens, row.HitTokensRatio = int64(row.HitBlocks*s.blockTokens), share(row.HitBlocks)
	row.MemoryTokensRatio, row.InfiniteTokensRatio = share(row.MemoryBlocks), share(earlier)
	row.Speedup = ratio(row.FullMs, row.MeasuredMs)
	row.IdealSpeedup = ratio(row.FullMs, row.IdealMs)
	row.IdealShare = ratio(row.Speedup, row.IdealSpeedup)
	row.BoundShare = ratio(row.BoundMs, row.MeasuredMs)
	row.LoadGBps = ratio(float64(row.LoadedBytes)/1e9, loading.Seconds()/o.TimeScale)
	row.FullGBps = row.LoadGBps * float64(s.scale) / o.TimeScale
	row.Tiers = p.tiers
	row.UCM = publishedFor(s, row)
	row.PublishedMs = publishedRun(s, p, o)
	row.Serving = servingOf(p.runs)
	if p.stream {
		row.Distribution = &Distribution{full.steps(), measured.steps(), ideal.steps()}
		row.Timeline = timeline(p.runs[0], s)
	}
	return row
}

// calculate returns how long the requests of a run would have waited with an empty store;
// with a store that takes no time and has everything that had been computed when they
// were looked up; and with the same one at the simulated speed.
func (p pass) calculate(s *Subject, run []outcome, o Options) (full, ideal, bound spans) {
	c := calculation{subject: s, gpus: s.gpus(o), atOnce: p.atOnce, whole: o.Load == LoadWhole}
	requests := p.planned(run)
	full = c.waits(requests)
	for i, r := range run {
		requests[i].cached = r.computedBlocks * s.blockTokens
	}
	ideal = c.waits(requests)
	if o.Bandwidth == 0 {
		return full, ideal, ideal
	}
	for i, r := range run {
		loaded := (r.computedBlocks - r.memoryBlocks) * s.blockTokens
		requests[i].load = time.Duration(float64(loaded) * float64(s.tokenBytes) / o.Bandwidth * float64(time.Second))
	}
	c.latency = o.Latency
	return full, ideal, c.waits(requests)
}

// planned returns the requests of a run for a calculation, with nothing cached.
func (p pass) planned(run []outcome) (all []planned) {
	for _, o := range run {
		all = append(all, planned{arrival: o.arrival - run[0].arrival, prompt: o.prompt, together: o.together, output: o.output, keys: o.keys})
	}
	return all
}

// waits returns how long each request waits for its first token.
func (c calculation) waits(requests []planned) (all spans) {
	jobs, arrivals := c.run(requests)
	for i, j := range jobs {
		all = append(all, j.tokens[0]-arrivals[i])
	}
	return all
}

// withoutStore returns what the requests of a run take with the engine's memory alone.
func (p pass) withoutStore(s *Subject, run []outcome, memory *engineMemory, o Options) (all []outcome) {
	c := calculation{subject: s, gpus: s.gpus(o), atOnce: p.atOnce, memory: memory}
	jobs, arrivals := c.run(p.planned(run))
	for i, j := range jobs {
		was := run[i]
		all = append(all, outcome{
			arrival: arrivals[i], tokens: j.tokens, prompt: was.prompt, output: was.output, together: was.together, keys: was.keys,
			memoryBlocks: j.inMemory, earlierBlocks: was.earlierBlocks, computedBlocks: was.computedBlocks,
		})
	}
	return all
}

// underWay returns for how long at least one load was in flight.
func underWay(run []outcome) (total time.Duration) {
	var loads []outcome
	for _, o := range run {
		if o.loadedBytes > 0 {
			loads = append(loads, o)
		}
	}
	slices.SortFunc(loads, func(a, b outcome) int { return cmp.Compare(a.loadBegan, b.loadBegan) })
	var until time.Duration
	for _, o := range loads {
		begin := max(o.loadBegan, until)
		if o.loadEnded > begin {
			total += o.loadEnded - begin
			until = o.loadEnded
		}
	}
	return total
}

// moments is the number of parts of a timeline.
const moments = 60

func timeline(run []outcome, s *Subject) []Moment {
	if len(run) == 0 {
		return nil
	}
	begin, end := run[0].arrival, run[0].first()
	for _, o := range run {
		begin, end = min(begin, o.arrival), max(end, o.first())
	}
	each := (end-begin)/moments + 1
	var parts [moments]struct {
		requests, tokens, hits int64
		bytes                  float64
	}
	for _, o := range run {
		p := &parts[min(int((o.first()-begin)/each), moments-1)]
		p.requests++
		p.tokens += int64(o.prompt)
		p.hits += int64((o.memoryBlocks + o.hitBlocks) * s.blockTokens)
		for i := range parts {
			from := begin + time.Duration(i)*each
			parts[i].bytes += float64(o.loadedBytes) * o.loadedBetween(from, from+each)
		}
	}
	var all []Moment
	for i, p := range parts {
		all = append(all, Moment{
			Seconds: (time.Duration(i+1) * each).Seconds(), Requests: int(p.requests),
			HitTokensRatio: ratio(float64(p.hits), float64(p.tokens)),
			FullGBps:       ratio(p.bytes*float64(s.scale)/1e9, each.Seconds()),
		})
	}
	return all
}

// loadedBetween returns the part of a load between two times, as if it had been even.
func (o outcome) loadedBetween(from, to time.Duration) float64 {
	inside := min(o.loadEnded, to) - max(o.loadBegan, from)
	return ratio(float64(max(inside, 0)), float64(o.loadEnded-o.loadBegan))
}

// spans has the durations of many requests.
type spans []time.Duration

// mean returns the mean in milliseconds.
func (s spans) mean() float64 {
	var sum time.Duration
	for _, d := range s {
		sum += d
	}
	return ratio(milliseconds(sum), float64(len(s)))
}

// quantile returns, in milliseconds, the smallest duration that this share does not
// exceed.
func (s spans) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(q*float64(len(sorted)) + 0.999999)
	return milliseconds(sorted[min(max(rank-1, 0), len(sorted)-1)])
}

// steps returns quantiles at even steps, from the smallest to the largest.
func (s spans) steps() []float64 {
	if len(s) == 0 {
		return nil
	}
	const most = 200
	sorted := slices.Sorted(slices.Values(s))
	n := min(most, len(sorted))
	steps := make([]float64, n)
	for i := range steps {
		steps[i] = milliseconds(sorted[i*(len(sorted)-1)/max(n-1, 1)])
	}
	return steps
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
