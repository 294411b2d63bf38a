package daemon

import (
	"context"
	"math"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/admin/history"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// moved is what rings have moved, all directories together.
type moved struct {
	reads, writes ringserver.Moved
}

func (v *view) moved() (all moved) {
	directories, former := v.rings.Traffic()
	for _, t := range append(directories, former) {
		addMoved(&all.reads, t.Reads)
		addMoved(&all.writes, t.Writes)
	}
	return all
}

func addMoved(to *ringserver.Moved, m ringserver.Moved) {
	to.Bytes += m.Bytes
	to.Took += m.Took
	if to.Within == nil {
		to.Within = make([]int64, len(m.Within))
	}
	for i, n := range m.Within {
		to.Within[i] += n
	}
	to.Failed = append(to.Failed, m.Failed...)
}

func requestsOf(m ringserver.Moved) (n int64) {
	for _, within := range m.Within {
		n += within
	}
	return n
}

func failedOf(m ringserver.Moved) (n int64) {
	for _, f := range m.Failed {
		n += f.Requests
	}
	return n
}

func (m moved) totals() api.RingTotals {
	return api.RingTotals{
		Reads: requestsOf(m.reads), Writes: requestsOf(m.writes), ReadBytes: m.reads.Bytes, WriteBytes: m.writes.Bytes, Failed: failedOf(m.reads) + failedOf(m.writes),
	}
}

// measured is what the history is made of.
type measured struct {
	moved   moved
	keeps   bool
	keeper  keeper.State
	hits    int64 // of lookups
	looked  int64
	space   *space // nil: the file system did not answer
	pages   pageservice.Counters
	serves  bool // there is a page service
	clients api.ClientTotals
}

// measureTime bounds what may hang with a disk.
const measureTime = 500 * time.Millisecond

func (v *view) measure(ctx context.Context) measured {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	m := measured{moved: v.moved(), clients: v.held()}
	if k := v.keeper(); k != nil {
		if by, err := v.keptBy(ctx, k); err == nil {
			m.keeps, m.keeper = true, by.state
		}
	}
	all, former := v.looked.Counts()
	for _, c := range append(all, former) {
		m.hits += c.Hits
		m.looked += c.Hits + c.Misses
	}
	if is, err := v.ready.space.look(ctx); err == nil {
		m.space = &is
	}
	if v.pages != nil {
		m.serves, m.pages = true, v.pages.server.Counted()
	}
	return m
}

// series are those of the history, in the order in which they are shown.
func series() []history.Series[measured] {
	var all []history.Series[measured]
	add := func(name, unit string, value func(before, now measured, seconds float64) float64) {
		all = append(all, history.Series[measured]{Name: name, Unit: unit, Value: value})
	}
	rate := func(name, unit string, count func(measured) int64) {
		add(name, unit, func(before, now measured, seconds float64) float64 {
			return perSecond(count(now)-count(before), seconds)
		})
	}
	for _, d := range []struct {
		name string
		of   func(measured) ringserver.Moved
	}{
		{"ring_read", func(m measured) ringserver.Moved { return m.moved.reads }},
		{"ring_write", func(m measured) ringserver.Moved { return m.moved.writes }},
	} {
		rate(d.name+"_bytes", "bytes/s", func(m measured) int64 { return d.of(m).Bytes })
		rate(d.name+"s", "1/s", func(m measured) int64 { return requestsOf(d.of(m)) })
		for _, p := range []struct {
			name string
			part float64
		}{{"_p50", 0.5}, {"_p99", 0.99}} {
			add(d.name+p.name, "s", func(before, now measured, _ float64) float64 {
				return percentile(d.of(before).Within, d.of(now).Within, p.part)
			})
		}
	}
	rate("ring_failed", "1/s", func(m measured) int64 { return failedOf(m.moved.reads) + failedOf(m.moved.writes) })
	kept := func(name, unit string, value func(before, now keeper.State, seconds float64) float64) {
		add(name, unit, func(before, now measured, seconds float64) float64 {
			if !before.keeps || !now.keeps || now.keeper.RunsSinceSeconds < before.keeper.RunsSinceSeconds { // another one, which counts from 0
				return math.NaN()
			}
			return value(before.keeper, now.keeper, seconds)
		})
	}
	rate("lookups", "1/s", func(m measured) int64 { return m.looked })
	add("hit_ratio", "ratio", func(before, now measured, _ float64) float64 {
		if now.looked <= before.looked {
			return math.NaN()
		}
		return float64(now.hits-before.hits) / float64(now.looked-before.looked)
	})
	kept("evicted_files", "1/s", func(before, now keeper.State, seconds float64) float64 {
		return perSecond(removedBy(now)-removedBy(before), seconds)
	})
	kept("evicted_bytes", "bytes/s", func(before, now keeper.State, seconds float64) float64 {
		return perSecond(now.EvictedBytes-before.EvictedBytes, seconds)
	})
	kept("used_bytes", "bytes", func(_, now keeper.State, _ float64) float64 { return float64(now.UsedBytes) })
	kept("limit_bytes", "bytes", func(_, now keeper.State, _ float64) float64 { return orNaN(float64(now.LimitBytes)) })
	add("free_bytes", "bytes", func(_, now measured, _ float64) float64 {
		if now.space == nil {
			return math.NaN()
		}
		return float64(now.space.freeBytes)
	})
	served := func(name string, count func(pageservice.Counters) int64) {
		add(name, "1/s", func(before, now measured, seconds float64) float64 {
			n := count(now.pages) - count(before.pages)
			if !now.serves || n < 0 { // another host has the index now
				return math.NaN()
			}
			return perSecond(n, seconds)
		})
	}
	served("page_hits", func(c pageservice.Counters) int64 { return c.Hits })
	served("page_misses", func(c pageservice.Counters) int64 { return c.Misses })
	count := func(name string, of func(api.ClientTotals) int) {
		add(name, "count", func(_, now measured, _ float64) float64 { return float64(of(now.clients)) })
	}
	count("clients", func(t api.ClientTotals) int { return t.Processes })
	count("rings", func(t api.ClientTotals) int { return t.Rings })
	count("iovs", func(t api.ClientTotals) int { return t.Iovs })
	return all
}

func removedBy(s keeper.State) int64 {
	return s.EvictedFiles + s.ExpiredFiles + s.ReapedFiles + s.RequestedFiles
}

func perSecond(n int64, seconds float64) float64 {
	if seconds <= 0 {
		return math.NaN()
	}
	return float64(n) / seconds
}

// orNaN returns a number that is one, and not 0 for none.
func orNaN(v float64) float64 {
	if v == 0 {
		return math.NaN()
	}
	return v
}

// percentile returns the time within which a part of the requests were answered that ended between two samples, as a straight
// line within each bound of ringserver.TrafficBounds; for those above the last one, that. NaN: there were none.
func percentile(before, now []int64, part float64) float64 {
	total := int64(0)
	counts := make([]int64, len(now))
	for i := range now {
		counts[i] = now[i]
		if i < len(before) {
			counts[i] -= before[i]
		}
		total += counts[i]
	}
	if total <= 0 {
		return math.NaN()
	}
	bounds, want, below := ringserver.TrafficBounds(), part*float64(total), 0.0
	for i, n := range counts {
		if i == len(bounds) {
			break
		}
		if below+float64(n) >= want && n > 0 {
			low := time.Duration(0)
			if i > 0 {
				low = bounds[i-1]
			}
			return low.Seconds() + (bounds[i]-low).Seconds()*(want-below)/float64(n)
		}
		below += float64(n)
	}
	return bounds[len(bounds)-1].Seconds()
}

// History implements api.Source.
func (v *view) History(window string, after int64) (api.History, error) {
	step := history.Fine
	if window == api.Window24h {
		step = history.Coarse
	}
	w := v.history.Window(step, after, time.Now())
	h := api.History{Window: window, StepSeconds: int(w.Step / time.Second), First: w.First, Measured: w.Measured, Times: make([]int64, 0, len(w.Times)), Series: []api.Series{}}
	for _, t := range w.Times {
		h.Times = append(h.Times, t.Round(time.Second).Unix())
	}
	for i, s := range series() {
		one := api.Series{Name: s.Name, Unit: s.Unit, Values: make([]*float64, len(w.Times))}
		for j := range w.Values[i] {
			if x := w.Values[i][j]; !math.IsNaN(x) && !math.IsInf(x, 0) {
				one.Values[j] = &x
			}
		}
		h.Series = append(h.Series, one)
	}
	return h, nil
}
