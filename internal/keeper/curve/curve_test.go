package curve

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// use is one element of a trace.
type use struct {
	key       uint64
	sizeBytes int64
}

// exact returns what an LRU cache of each size would have served, from the stack of all
// keys.
func exact(trace []use, sizes []int64) []float64 {
	hits := make([]float64, len(sizes))
	var stack []use // the key used last in front
	for _, u := range trace {
		at := slices.IndexFunc(stack, func(v use) bool { return v.key == u.key })
		if at >= 0 {
			needs := u.sizeBytes
			for _, v := range stack[:at] {
				needs += v.sizeBytes
			}
			for i, size := range sizes {
				if needs <= size {
					hits[i]++
				}
			}
			stack = slices.Delete(stack, at, at+1)
		}
		stack = slices.Insert(stack, 0, u)
	}
	for i := range hits {
		hits[i] /= float64(len(trace))
	}
	return hits
}

func zipf(r *rand.Rand, n, uses int, largest int64) []use {
	z := rand.NewZipf(r, 1.1, 8, uint64(n-1))
	trace := make([]use, uses)
	for i := range trace {
		key := z.Uint64()
		trace[i] = use{key, 1 + int64(key*7919)%largest}
	}
	return trace
}

func feed(e *Estimator, trace []use) {
	for _, u := range trace {
		e.Use(u.key, u.sizeBytes, 0, false)
	}
}

// While all keys are followed, the curve is exact at its points.
func TestCurveIsExactIfAllKeysAreFollowed(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 5))
	for range 30 {
		trace := zipf(r, 1+r.IntN(60), 600, 1+r.Int64N(1000))
		e := New(Options{SampleKeys: 100})
		feed(e, trace)
		points := e.Curve()
		sizes := make([]int64, len(points))
		for i, p := range points {
			sizes[i] = p.CapacityBytes
		}
		for i, want := range exact(trace, sizes) {
			if math.Abs(points[i].HitRatio-want) > 1e-9 {
				t.Fatalf("at %d bytes: %v; the stack has %v", sizes[i], points[i].HitRatio, want)
			}
		}
		if want := exact(trace, []int64{1 << 60})[0]; len(points) > 0 && math.Abs(points[len(points)-1].HitRatio-want) > 1e-9 {
			t.Fatalf("without a limit: %v; the stack has %v", points[len(points)-1].HitRatio, want)
		}
	}
}

// With 500 keys followed, fewer than one in four, the curve is off by at most 0.04, and by 0.015 on
// average.
func TestSampledCurveIsNearTheExactOne(t *testing.T) {
	for name, largest := range map[string]int64{"blocks of one size": 1, "blocks of many sizes": 4096} {
		r := rand.New(rand.NewPCG(7, 7))
		trace := zipf(r, 5000, 15_000, largest)
		e := New(Options{SampleKeys: 500})
		feed(e, trace)
		if e.part() > 0.25 {
			t.Errorf("%s: %v of the keys are followed", name, e.part())
		}
		var sizes []int64
		for size := int64(64); size < 5000; size *= 2 {
			sizes = append(sizes, size*(largest+1)/2)
		}
		var sum float64
		for i, want := range exact(trace, sizes) {
			got := e.HitRatio(sizes[i])
			off := math.Abs(got - want)
			t.Logf("%s, %d bytes: %.4f, exactly %.4f", name, sizes[i], got, want)
			if sum += off; off > 0.04 {
				t.Errorf("%s, %d bytes: %.4f; exactly %.4f", name, sizes[i], got, want)
			}
		}
		if mean := sum / float64(len(sizes)); mean > 0.015 {
			t.Errorf("%s: off by %.4f on average", name, mean)
		}
	}
}

// Whatever is used, memory stays bounded and the curve rises from 0 to at most 1.
func TestEstimatorKeepsItsBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 6))
	for range 40 {
		e := New(Options{SampleKeys: 1 + r.IntN(50), HalfLife: time.Duration(1+r.IntN(100)) * time.Second})
		places := len(e.order.sums)
		now := int64(0)
		for range 3000 {
			now += r.Int64N(1000) - 10
			e.Use(r.Uint64N(500), r.Int64()>>r.IntN(64), now, false)
			if len(e.followed) > e.o.SampleKeys || len(e.order.sums) != places {
				t.Fatalf("%d keys of at most %d, %d places", len(e.followed), e.o.SampleKeys, len(e.order.sums))
			}
		}
		var total int64
		for _, k := range e.followed {
			total += k.sizeBytes
		}
		if total != e.order.total || total < 0 {
			t.Fatalf("%d bytes in order, %d in %d keys", e.order.total, total, len(e.followed))
		}
		last := Point{}
		for _, p := range e.Curve() {
			if p.CapacityBytes <= last.CapacityBytes || p.HitRatio <= last.HitRatio || p.HitRatio > 1 {
				t.Fatalf("%v after %v", p, last)
			}
			last = p
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	e := New(Options{})
	for key := range uint64(200_000) {
		e.Use(key, 1<<20, int64(key), false)
	}
	if len(e.followed) > 8192 || len(e.order.sums) > 2*8192+10 {
		t.Errorf("%d keys, %d places", len(e.followed), len(e.order.sums))
	}
	known := uint64(0)
	for mix(known) > e.threshold.Load() {
		known++
	}
	e.Use(known, 1, 200_000, false)
	if again := testing.AllocsPerRun(100, func() { e.Use(known, 1, 200_000, false) }); again > 0 {
		t.Errorf("%v allocations for each use of a known key", again)
	}
}

// What was hot yesterday says nothing about today.
func TestCurveFollowsTheLoad(t *testing.T) {
	e := New(Options{HalfLife: time.Minute})
	now := int64(1 << 40)
	for i := range uint64(5000) { // ten keys in turn
		now += 10
		e.Use(i%10, 1, now, false)
	}
	if got := e.HitRatio(10); got < 0.99 {
		t.Errorf("ten keys in turn: %v", got)
	}
	if got := e.HitRatio(9); got > 0.01 {
		t.Errorf("ten keys in turn, room for nine: %v", got)
	}
	for i := range uint64(60_000) { // ten half-lives of keys that never return
		now += 10
		e.Use(1<<30+i, 1, now, false)
	}
	if got := e.HitRatio(1 << 40); got > 0.05 { // of which the sample's error is most
		t.Errorf("after ten minutes of keys that never return: %v", got)
	}
	for i := range uint64(60_000) {
		now += 10
		e.Use(2<<30+i%1000, 1, now, false)
	}
	if got := e.HitRatio(1100); got < 0.9 {
		t.Errorf("ten minutes of a thousand keys later: %v", got)
	}
}

// After a flood of keys, the part that is followed rises again.
func TestFewKeysAreFollowedAgainAfterMany(t *testing.T) {
	e := New(Options{SampleKeys: 100, HalfLife: time.Minute})
	for key := range uint64(10_000) {
		e.Use(key, 1, 0, false)
	}
	low := e.part()
	now := int64(0)
	for i := range uint64(100_000) {
		now += 60
		e.Use(1<<40+i%80, 1, now, false)
	}
	if e.part() <= low {
		t.Errorf("%v of the keys are followed, after a flood %v", e.part(), low)
	}
}

func TestNothingUsed(t *testing.T) {
	e := New(Options{})
	e.Use(1, 1, 1, false)
	if served, uses := e.Served(); served != 0 || uses != 1 {
		t.Errorf("%v of %v uses were served", served, uses)
	}
	if points := e.Curve(); points != nil || e.HitRatio(1<<40) != 0 {
		t.Errorf("%v", points)
	}
}

func TestConcurrentUses(t *testing.T) {
	e := New(Options{SampleKeys: 64})
	var all sync.WaitGroup
	for g := range uint64(4) {
		all.Go(func() {
			for i := range uint64(3000) {
				e.Use(i%(100*(g+1)), 5, int64(i), i%4 == 0)
				if i%500 == 0 {
					e.Curve()
				}
			}
		})
	}
	all.Wait()
	if served, uses := e.Served(); uses < 11_000 || math.Abs(served-0.25) > 0.02 { // some have faded
		t.Errorf("%v of %v uses were served", served, uses)
	}
}

func FuzzEstimator(f *testing.F) {
	f.Add([]byte{1, 2, 3, 1, 2, 3}, int64(10))
	f.Add([]byte{0, 255, 0, 7, 7, 7, 7}, int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, keys []byte, size int64) {
		e := New(Options{SampleKeys: 8, HalfLife: time.Second})
		for i, key := range keys {
			e.Use(uint64(key), size>>(key%64), int64(i)*int64(key), false)
		}
		last := 0.0
		for _, p := range e.Curve() {
			if !(p.HitRatio > last) || p.HitRatio > 1 || p.CapacityBytes <= 0 {
				t.Fatalf("%v after %v", p, last)
			}
			last = p.HitRatio
		}
	})
}

func BenchmarkUse(b *testing.B) {
	e := New(Options{})
	r := rand.New(rand.NewPCG(1, 1))
	for range b.N {
		e.Use(r.Uint64N(1<<20), 1<<20, 0, false)
	}
}
