package enginebench

import (
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// pass is the requests of one kind: how they arrived, and the outcomes of each run in the
// order in which they were admitted.
type pass struct {
	name         string
	inputTokens  int
	atOnce       int  // requests under way; 0: as they arrive
	storedTokens int  // of each prompt, that the bench had put into the store
	stream       bool // one after the other, so that there is something to see over time
	runs         [][]outcome
}

// rowOf summarises a pass.
func rowOf(s *Subject, p pass, bandwidth, fast float64) Row {
	row := Row{
		Name: p.name, Model: s.Name(), Hardware: s.Hardware(),
		BlockBytes: s.layout.BlockBytes, ShardBytes: s.layout.ShardBytes,
		InputTokens: p.inputTokens, Concurrent: p.atOnce,
	}
	engineTime := func(wall time.Duration) time.Duration { return time.Duration(float64(wall) * fast) }

	var full, ideal, measured spans
	var fullMeans, idealMeans, boundMeans, means []float64
	var hash, lookup, first, stall, save spans
	var loading time.Duration
	for _, run := range p.runs {
		fullRun, idealRun, boundRun := p.calculated(s, run, bandwidth, engineTime)
		var measuredRun spans
		for _, o := range run {
			measuredRun = append(measuredRun, engineTime(o.done.Sub(o.arrival)))
			hash, lookup = append(hash, engineTime(o.hash)), append(lookup, engineTime(o.lookup))
			stall = append(stall, engineTime(o.stalled))
			if o.loadedBytes > 0 {
				first = append(first, engineTime(o.firstLayer))
			}
			if o.savedBytes > 0 {
				save = append(save, engineTime(o.save))
			}
			row.Requests++
			row.Tokens += int64(o.tokens)
			row.HitTokens += int64(o.hitTokens)
			row.LoadedBytes += o.loadedBytes
			row.SavedBytes += o.savedBytes
			row.LostBlocks += o.lostBlocks
			row.FailedSaves += o.failedSaves
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
	row.HitTokensRatio = ratio(float64(row.HitTokens), float64(row.Tokens))
	row.Speedup = ratio(row.FullMs, row.MeasuredMs)
	row.IdealSpeedup = ratio(row.FullMs, row.IdealMs)
	row.IdealShare = ratio(row.Speedup, row.IdealSpeedup)
	row.BoundShare = ratio(row.BoundMs, row.MeasuredMs)
	row.LoadGBps = ratio(float64(row.LoadedBytes)/1e9, loading.Seconds())
	row.FullGBps = row.LoadGBps * float64(s.scale) / fast
	row.UCM = publishedFor(s, row)
	if p.stream {
		row.Distribution = &Distribution{full.steps(), measured.steps(), ideal.steps()}
		row.Timeline = timeline(p.runs[0], s.scale, engineTime)
	}
	return row
}

// calculated returns how long the requests of a run would have waited with an empty
// store, with a store that takes no time, and with one limited by bandwidth alone.
func (p pass) calculated(s *Subject, run []outcome, bandwidth float64, engineTime func(time.Duration) time.Duration) (full, ideal, bound spans) {
	var whole, rest, loaded []wanted
	for _, o := range run {
		w := wanted{arrival: engineTime(o.arrival.Sub(run[0].arrival)), compute: s.compute(0, o.tokens, o.together), layers: s.profile.Model.Layers}
		whole = append(whole, w)
		w.compute = s.compute(max(o.hitTokens, p.storedTokens), o.tokens, o.together)
		rest = append(rest, w)
		if bandwidth > 0 {
			w.load = time.Duration(float64(o.loadedBytes*s.scale) / bandwidth * float64(time.Second))
		}
		loaded = append(loaded, w)
	}
	return schedule(whole, p.atOnce), schedule(rest, p.atOnce), schedule(loaded, p.atOnce)
}

// underWay returns for how long at least one load was in flight.
func underWay(run []outcome) (total time.Duration) {
	var loads []outcome
	for _, o := range run {
		if o.loadedBytes > 0 {
			loads = append(loads, o)
		}
	}
	slices.SortFunc(loads, func(a, b outcome) int { return a.loadBegan.Compare(b.loadBegan) })
	var until time.Time
	for _, o := range loads {
		begin := o.loadBegan
		if until.After(begin) {
			begin = until
		}
		if o.loadEnded.After(begin) {
			total += o.loadEnded.Sub(begin)
			until = o.loadEnded
		}
	}
	return total
}

// publishedFor returns UCM's figure for a row, if one is published for such prompts.
func publishedFor(s *Subject, row Row) *Published {
	if row.HitTokensRatio < 0.79 || row.HitTokensRatio > 0.81 {
		return nil
	}
	for _, r := range prefill.UCM() {
		h := s.profile.Hardware
		if r.Model == s.Name() && r.GPU == h.GPU.Name && r.GPUs == h.Count && r.TotalTokens == row.InputTokens && r.Concurrent == row.Concurrent {
			speedup := ratio(float64(r.FullCompute), float64(r.Hit80))
			return &Published{milliseconds(r.FullCompute), milliseconds(r.Hit80), speedup, ratio(speedup, row.IdealSpeedup)}
		}
	}
	return nil
}

// moments is the number of parts of a timeline.
const moments = 60

func timeline(run []outcome, scale int64, engineTime func(time.Duration) time.Duration) []Moment {
	if len(run) == 0 {
		return nil
	}
	begin, end := run[0].arrival, run[0].done
	for _, o := range run {
		if o.done.After(end) {
			end = o.done
		}
	}
	each := end.Sub(begin)/moments + 1
	var parts [moments]struct {
		requests, tokens, hits int64
		bytes                  float64
	}
	for _, o := range run {
		p := &parts[min(int(o.done.Sub(begin)/each), moments-1)]
		p.requests++
		p.tokens += int64(o.tokens)
		p.hits += int64(o.hitTokens)
		for i := range parts {
			from := begin.Add(time.Duration(i) * each)
			parts[i].bytes += float64(o.loadedBytes) * o.loadedBetween(from, from.Add(each))
		}
	}
	var all []Moment
	for i, p := range parts {
		all = append(all, Moment{
			Seconds: engineTime(time.Duration(i+1) * each).Seconds(), Requests: int(p.requests),
			HitTokensRatio: ratio(float64(p.hits), float64(p.tokens)),
			FullGBps:       ratio(p.bytes*float64(scale)/1e9, engineTime(each).Seconds()),
		})
	}
	return all
}

// loadedBetween returns the part of a load between two times, as if it had been even.
func (o outcome) loadedBetween(from, to time.Time) float64 {
	if o.loadBegan.After(from) {
		from = o.loadBegan
	}
	if o.loadEnded.Before(to) {
		to = o.loadEnded
	}
	return ratio(float64(max(to.Sub(from), 0)), float64(o.loadEnded.Sub(o.loadBegan)))
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
