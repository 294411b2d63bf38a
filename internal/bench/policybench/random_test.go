package policybench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// random returns a trace of one load or several with random parameters: uniform and skewed
// popularity, with drift or not, scans, loops, one-hit wonders, bursts, chats, prompts of one block and of
// hundreds, generations of prompts that die.
func random(seed uint64) *Trace {
	r := rand.New(rand.NewPCG(seed, 77))
	var name string
	one := func() *Trace {
		k := r.IntN(14)
		scale := 1 + r.IntN(3)
		switch k {
		case 0:
			return scans(scale)
		case 1:
			return loop(scale)
		case 2:
			return groups(scale)
		case 3:
			return drift(scale, 0.5+r.Float64(), 20+r.IntN(2000))
		case 4:
			return chat("chat", scale, 1+r.IntN(30), geometric(1+5*r.Float64()), logNormal(1+1000*r.Float64()*r.Float64(), 2*r.Float64()))
		case 5:
			return chat("chatN", scale, 1+r.IntN(30), exactly(1+r.IntN(8)), logNormal(1+300*r.Float64()*r.Float64(), r.Float64()))
		case 6:
			return phases(scale, 20+r.IntN(3000))
		case 7: // uniform
			l := newLoad("uniform")
			l.rand = r
			n, b := 20+r.IntN(2000), 1+r.IntN(20)
			all := l.prompts(n, b)
			for i := range 400 * scale {
				l.ask(float64(i)*100, all[r.IntN(n)])
			}
			return l.Trace
		case 8: // prompts of one block, and those that come once
			l := newLoad("wonders")
			l.rand = r
			n := 100 + r.IntN(2000)
			all, draw, p := l.prompts(n, 1), l.zipf(n, 0.4+r.Float64()), r.Float64()
			for i := range 3000 * scale {
				if r.Float64() < p {
					l.ask(float64(i)*50, l.new(1))
				} else {
					l.ask(float64(i)*50, all[draw()])
				}
			}
			return l.Trace
		case 9: // bursts: a prompt several times in a row, then perhaps again later
			l := newLoad("bursts")
			l.rand = r
			at, reps, gap := 0.0, 1+r.IntN(8), 1+r.IntN(60000)
			var old [][]int32
			back := r.Float64()
			for range 300 * scale {
				p := l.new(1 + r.IntN(30))
				if len(old) > 0 && r.Float64() < back {
					p = old[r.IntN(len(old))]
				}
				old = append(old, p)
				for range 1 + r.IntN(reps) {
					l.ask(at, p)
					at += float64(r.IntN(200))
				}
				at += float64(r.IntN(gap))
			}
			return l.Trace
		case 10: // huge prompts
			l := newLoad("huge")
			l.rand = r
			n := 5 + r.IntN(60)
			all, draw := l.prompts(n, 100+r.IntN(400)), l.zipf(n, r.Float64()*1.2)
			for i := range 100 * scale {
				p := all[draw()]
				l.ask(float64(i)*1000, p[:1+r.IntN(len(p))], l.new(r.IntN(30)))
			}
			return l.Trace
		case 11: // popular at first, forgotten later: uses mislead
			l := newLoad("generations")
			l.rand = r
			period, size, at := 20+r.IntN(500), 5+r.IntN(60), 0.0
			var all [][]int32
			for i := range 900 * scale {
				if i%period == 0 {
					all = l.prompts(size, 1+r.IntN(10))
				}
				at += 1000 * r.ExpFloat64()
				l.ask(at, all[r.IntN(size)])
			}
			return l.Trace
		case 12: // loop with scan
			l := newLoad("loop and scan")
			l.rand = r
			n, b, every := 5+r.IntN(200), 1+r.IntN(20), 1+r.IntN(6)
			all := l.prompts(n, b)
			for i := range 500 * scale {
				if i%every == 0 {
					l.ask(float64(i)*100, l.new(1+r.IntN(2*b)))
				}
				l.ask(float64(i)*100, all[i%n])
			}
			return l.Trace
		default: // sessions that die after some turns
			l := newLoad("dead")
			l.rand = r
			turns, width, at := 2+r.IntN(6), 1+r.IntN(60), 0.0
			type s struct {
				p    []int32
				left int
			}
			var open []s
			for range 1200 * scale {
				at += 300 * r.ExpFloat64()
				if len(open) < width {
					open = append(open, s{l.new(1 + r.IntN(10)), turns})
				}
				k := r.IntN(len(open))
				l.ask(at, open[k].p)
				if open[k].left--; open[k].left == 0 {
					open = slices.Delete(open, k, k+1)
				}
			}
			return l.Trace
		}
	}
	all := []*Trace{one()}
	for r.IntN(2) == 0 && len(all) < 4 {
		all = append(all, one())
	}
	for _, t := range all {
		name += t.Name + "; "
	}
	t := all[0]
	if len(all) > 1 {
		how, by := "in order", inOrder
		switch r.IntN(3) {
		case 0:
			how, by = "mixed", mixed
		case 1:
			how = "at random"
			by = func(left []int) int {
				for {
					if i := r.IntN(len(left)); left[i] > 0 {
						return i
					}
				}
			}
		}
		t = join(how, by, all...)
		name = how + ": " + name
	}
	switch r.IntN(6) {
	case 0:
		t = withTimes(t, "at once", func(int64) int64 { return 0 })
		name += "at once"
	case 1:
		t = withTimes(t, "secs", func(at int64) int64 { return at / 1000 * 1000 })
		name += "secs"
	}
	t.Name = fmt.Sprintf("%d %s", seed, name)
	return t
}

// Of 600 random traces at four capacities, kv3fs was more than 2 % under LRU on the first seven of
// these, by up to 9 %, because it trusted a bonus that had luck with a few large prompts. Nearly all have at least
// 200 requests; on fewer it has no time to learn, and stays with LRU. On the next four it was, by up to 4 %, because it
// kept a bonus that had been right before the load changed. On the last eight it was, by up to 9 %: their prompts grow, or
// what is used changes, just after a bonus has proved better.
func TestRandomLoads(t *testing.T) {
	for _, c := range []struct {
		seed    uint64
		percent float64
	}{{460, 5}, {425, 20}, {153, 10}, {106, 10}, {509, 5}, {440, 5}, {476, 10}, {116, 20}, {34, 10}, {1456, 20}, {10221, 20}, {10228, 20}, {10295, 20},
		{1435, 10}, {140, 20}, {1446, 10}, {20093, 10}, {20849, 20}, {20860, 10}, {21282, 10}, {21323, 10}} {
		bound(t, random(c.seed), c.percent)
	}
}

// At night, random loads of their own. Two of 18,000 (seeds 0, 20000 and 30000 and the 1500 from there) were more than 2 % under LRU, because
// what is lost when a load changes is a good part of what LRU serves at all: seed 20095 at 20 %, and 332 at 10 %, the worst
// known, 3.7 % under LRU.
func TestMoreRandomLoads(t *testing.T) {
	if os.Getenv("KV3FS_SUITES") != "all" {
		t.Skip("at night")
	}
	first, under := seed.New(t), 0
	for i := range uint64(200) {
		trace := random(first + i)
		for _, percent := range []float64{1, 5, 10, 20} {
			blocks, err := Capacity{Percent: percent}.blocksOf(trace)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := simulate(t.Context(), trace, newTuned(trace.DistinctBlocks, blocks))
			if err != nil {
				t.Fatal(err)
			}
			lru, err := simulate(t.Context(), trace, newLRU(trace.DistinctBlocks, blocks))
			if err != nil {
				t.Fatal(err)
			}
			if ratio := float64(ours) / float64(lru); ratio < aimToLRU {
				under++
				t.Logf("%s at %v%%: %.3f of LRU", trace.Name, percent, ratio)
				if ratio < 0.95 {
					t.Errorf("%s at %v%%: %.3f of LRU", trace.Name, percent, ratio)
				}
			}
		}
	}
	if under > 4 {
		t.Errorf("%d of 800 are more than 2 %% under LRU", under)
	}
}
