package policybench

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/internal/test/sharedtrace"
)

// bound runs a trace and checks what must hold on every one.
func bound(t *testing.T, trace *Trace, percent ...float64) *Report {
	t.Helper()
	var o Options
	for _, p := range percent {
		o.Capacities = append(o.Capacities, Capacity{Percent: p})
	}
	r, err := Run(t.Context(), trace, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Capacities {
		t.Logf("%s at %s: kv3fs %.4f, LRU %.4f, S3-FIFO %.4f, optimum %.4f", trace.Name, c.Capacity, c.Ours, c.LRU, c.S3FIFO, c.Optimum)
		if c.Ours < aimToLRU*c.LRU {
			t.Errorf("%s at %s: kv3fs serves %.4f, less than %v of LRU's %.4f", trace.Name, c.Capacity, c.Ours, aimToLRU, c.LRU)
		}
		for _, contender := range contenders() {
			if ratio := *c.ratioOf(contender.name); ratio > c.Optimum || ratio < 0 {
				t.Errorf("%s at %s: %s serves %.4f, and the optimum %.4f", trace.Name, c.Capacity, contender.name, ratio, c.Optimum)
			}
		}
		if c.Optimum > r.UnlimitedRatio {
			t.Errorf("%s at %s: the optimum is %.4f, and an unlimited cache serves %.4f", trace.Name, c.Capacity, c.Optimum, r.UnlimitedRatio)
		}
	}
	return r
}

// At night the loads are five times as large, and each runs at every capacity.
func TestNeverFarUnderLRU(t *testing.T) {
	scale, sets := 2, [][]float64{{1, 10}, {5, 20}}
	if os.Getenv("KV3FS_SUITES") == "all" {
		scale, sets = 10, [][]float64{{1, 5, 10, 20}}
	}
	for i, trace := range loads(scale) {
		t.Run(trace.Name, func(t *testing.T) {
			t.Parallel()
			bound(t, trace, sets[i%len(sets)]...)
		})
	}
}

// KV3FS_TRACES names a trace in Mooncake's format; if it does not, it is the one that lies beside
// the project, whose aims are checked, too.
func TestGivenTrace(t *testing.T) {
	path, conversation := sharedtrace.Path(t)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace, err := Load(t.Context(), workload.NewBlockReader(f, path))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range bound(t, trace, 1, 5, 10, 20).Capacities {
		if conversation && c.Aim == 0 {
			t.Errorf("%s: no aim for %s: it is another trace", c.Capacity, path)
		}
		if c.Ours < c.Aim {
			t.Errorf("%s: kv3fs serves %.4f; the aim is %v", c.Capacity, c.Ours, c.Aim)
		}
	}
}
