package policybench

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// load builds a trace whose blocks are chained: no block appears after two different ones.
type load struct {
	*Trace
	rand *rand.Rand
}

func newLoad(name string) *load { return &load{&Trace{Name: name}, rand.New(rand.NewPCG(1, 2))} }

// blocks returns new blocks.
func (l *load) new(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(l.DistinctBlocks + i)
	}
	l.DistinctBlocks += n
	return ids
}

func (l *load) ask(atMs float64, parts ...[]int32) {
	from := len(l.blocks)
	for _, part := range parts {
		l.blocks = append(l.blocks, part...)
	}
	l.requests = append(l.requests, request{int64(atMs), from, len(l.blocks)})
}

// prompts returns n prompts of so many blocks each.
func (l *load) prompts(n, blocks int) [][]int32 {
	all := make([][]int32, n)
	for i := range all {
		all[i] = l.new(blocks)
	}
	return all
}

// zipf returns a function that draws from n numbers, of which the first is the most
// frequent.
func (l *load) zipf(n int, exponent float64) func() int {
	upTo := make([]float64, n)
	var sum float64
	for i := range upTo {
		sum += math.Pow(float64(i+1), -exponent)
		upTo[i] = sum
	}
	return func() int {
		i, _ := slices.BinarySearch(upTo, l.rand.Float64()*sum)
		return min(i, n-1)
	}
}

// scans are prompts that are used once, between prompts that return.
func scans(scale int) *Trace {
	l := newLoad("one-shot scans")
	returning, draw := l.prompts(20*scale, 10), l.zipf(20*scale, 0.8)
	for i := range 700 * scale {
		if i%(100*scale) > 70*scale || i%2 == 0 {
			l.ask(float64(i)*300, l.new(10))
		} else {
			l.ask(float64(i)*300, returning[draw()])
		}
	}
	return l.Trace
}

// loop asks for the same prompts in turn, forever.
func loop(scale int) *Trace {
	l := newLoad("a loop")
	all := l.prompts(10*scale, 20)
	for i := range 300 * scale {
		l.ask(float64(i)*100, all[i%len(all)])
	}
	return l.Trace
}

// drift draws prompts by popularity, which changes every so many requests.
func drift(scale int, exponent float64, period int) *Trace {
	l := newLoad(fmt.Sprintf("zipf %v with drift every %d", exponent, period))
	all, draw := l.prompts(100*scale, 8), l.zipf(100*scale, exponent)
	for i := range 1200 * scale {
		if i%period == period-1 {
			for range len(all) / 10 {
				all[l.rand.IntN(len(all))] = l.new(8)
			}
			hottest := all[:len(all)/10]
			l.rand.Shuffle(len(hottest), func(i, j int) { hottest[i], hottest[j] = hottest[j], hottest[i] })
		}
		l.ask(float64(i)*100, all[draw()])
	}
	return l.Trace
}

// groups share prefixes; their queries come round robin.
func groups(scale int) *Trace {
	l := newLoad("prefix groups round robin")
	prefixes := l.prompts(4*scale, 40)
	for i := range 300 * scale {
		l.ask(float64(i)*200, prefixes[i%len(prefixes)], l.new(1))
	}
	return l.Trace
}

// chat has sessions that begin at a rate a second with a shared system prompt, and send the
// whole conversation again in each turn.
func chat(name string, scale, perTurn int, turns func(*rand.Rand) int, gapSeconds func(*rand.Rand) float64) *Trace {
	l := newLoad(name)
	type turn struct {
		atMs    float64
		session int
	}
	var all []turn
	sessions := make([][]int32, 100*scale)
	system := l.new(2)
	var at float64
	for s := range sessions {
		sessions[s] = system
		at += l.rand.ExpFloat64() * 1000
		when := at
		for range turns(l.rand) {
			all = append(all, turn{when, s})
			when += gapSeconds(l.rand) * 1000
		}
	}
	slices.SortStableFunc(all, func(a, b turn) int { return cmp.Compare(a.atMs, b.atMs) })
	for _, t := range all {
		s := &sessions[t.session]
		*s = append(slices.Clip(*s), l.new(1+l.rand.IntN(2*perTurn))...)
		l.ask(t.atMs, *s)
	}
	return l.Trace
}

func geometric(mean float64) func(*rand.Rand) int {
	return func(r *rand.Rand) int {
		n := 1
		for r.Float64() > 1/mean {
			n++
		}
		return n
	}
}

func exactly(n int) func(*rand.Rand) int { return func(*rand.Rand) int { return n } }

func logNormal(median, sigma float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return median * math.Exp(sigma*r.NormFloat64()) }
}

// phases change between a popular set and sessions that die after four quick turns.
func phases(scale, period int) *Trace {
	l := newLoad(fmt.Sprintf("phases of %d", period))
	popular, draw := l.prompts(30*scale, 8), l.zipf(30*scale, 0.7)
	type session struct {
		blocks []int32
		left   int
	}
	var open []session
	var at float64
	for i := range 1200 * scale {
		at += l.rand.ExpFloat64() * 300
		switch {
		case i/period%2 == 0 && l.rand.IntN(3) == 0:
			l.ask(at, l.new(8))
		case i/period%2 == 0:
			l.ask(at, popular[draw()])
		case len(open) < 20:
			open = append(open, session{l.new(10), 4})
			l.ask(at, open[len(open)-1].blocks)
		default:
			k := l.rand.IntN(10)
			s := &open[k]
			s.blocks = append(slices.Clip(s.blocks), l.new(1)...)
			l.ask(at, s.blocks)
			if s.left--; s.left == 0 {
				open = slices.Delete(open, k, k+1)
			}
		}
	}
	return l.Trace
}

// withTimes returns a trace with other times.
func withTimes(t *Trace, name string, change func(atMs int64) int64) *Trace {
	changed := *t
	changed.Name += ", " + name
	changed.requests = slices.Clone(t.requests)
	for i := range changed.requests {
		changed.requests[i].atMs = change(changed.requests[i].atMs)
	}
	return &changed
}

// join returns a trace with the requests of several, in the order that next gives:
// numbers of traces, as often as they have requests.
func join(name string, next func(left []int) int, all ...*Trace) *Trace {
	l := newLoad(name)
	base, left := make([]int32, len(all)), make([]int, len(all))
	for i, t := range all {
		base[i], left[i] = int32(l.DistinctBlocks), len(t.requests)
		l.DistinctBlocks += t.DistinctBlocks
	}
	for slices.Max(left) > 0 {
		i := next(left)
		t := all[i]
		blocks := slices.Clone(t.of(t.requests[len(t.requests)-left[i]]))
		for k := range blocks {
			blocks[k] += base[i]
		}
		l.ask(float64(len(l.requests))*250, blocks)
		left[i]--
	}
	return l.Trace
}

// inOrder joins one trace after the other.
func inOrder(left []int) int { return slices.IndexFunc(left, func(n int) bool { return n > 0 }) }

// mixed joins traces evenly.
func mixed(left []int) int { return slices.Index(left, slices.Max(left)) }

func loads(scale int) []*Trace {
	short := chat("chat with short gaps", scale, 6, geometric(4), logNormal(20, 1))
	long := chat("chat with long gaps", scale, 6, geometric(4), logNormal(400, 1))
	two := chat("chat of two turns", scale, 8, exactly(2), logNormal(100, 0.2))
	quick := chat("five quick turns", scale, 8, exactly(5), logNormal(3, 0.1))
	return []*Trace{
		scans(scale), loop(scale), groups(scale),
		drift(scale, 0.9, 500), drift(scale, 0.7, 2000), drift(scale, 1.1, 100),
		short, long, two, quick, chat("chat of three turns", scale, 8, exactly(3), logNormal(60, 0.3)),
		withTimes(long, "all at once", func(int64) int64 { return 0 }),
		withTimes(long, "in seconds", func(at int64) int64 { return at / 1000 }),
		withTimes(long, "in bursts", func(at int64) int64 { return at / 600_000 * 600_000 }),
		phases(scale, 200), phases(scale, 1000), phases(scale, 5000),
		join("quick turns among returning ones", mixed, quick, two),
		join("scans among chats", mixed, scans(scale), long),
		join("a loop among chats", mixed, loop(scale), long),
		join("scans, then chats, then a loop", inOrder, scans(scale), two, loop(scale), short),
	}
}
