package enginebench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

func TestSchedule(t *testing.T) {
	ms := time.Millisecond
	computes := func(ms ...int) (all []wanted) {
		for _, n := range ms {
			all = append(all, wanted{compute: time.Duration(n) * time.Millisecond, layers: 10})
		}
		return all
	}
	arriving := computes(10, 10, 10)
	arriving[1].arrival, arriving[2].arrival = 5*ms, 50*ms
	// Of two that arrive together the first waits for its data; the second's is loaded
	// while the first is computed.
	loading := computes(10, 100)
	loading[0].load, loading[1].load = 30*ms, 20*ms
	for name, c := range map[string]struct {
		requests []wanted
		atOnce   int
		want     []time.Duration
	}{
		"together":            {computes(10, 10, 10), 3, []time.Duration{10 * ms, 20 * ms, 30 * ms}},
		"one at a time":       {computes(10, 20, 5), 1, []time.Duration{10 * ms, 20 * ms, 5 * ms}},
		"two at once":         {computes(10, 10, 10), 2, []time.Duration{10 * ms, 20 * ms, 20 * ms}},
		"as they arrive":      {arriving, 0, []time.Duration{10 * ms, 15 * ms, 10 * ms}},
		"through a pipe":      {loading, 2, []time.Duration{31 * ms, 131 * ms}},
		"nothing to wait for": {nil, 1, []time.Duration{}},
	} {
		if got := schedule(c.requests, c.atOnce); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestGPUWaitsForEachLayer(t *testing.T) {
	begin := time.Unix(1000, 0)
	after := func(ms ...int) (all []time.Time) {
		for _, n := range ms {
			all = append(all, begin.Add(time.Duration(n)*time.Millisecond))
		}
		return all
	}
	var g gpu
	// The second layer lands late; the third has landed when the second is computed.
	end, stalled := g.run(begin, after(2, 30, 31), 10*time.Millisecond)
	if end != after(50)[0] || stalled != 20*time.Millisecond {
		t.Errorf("done after %v, stalled %v", end.Sub(begin), stalled)
	}
	// The layers of the next request landed while the first was computed.
	end, stalled = g.run(begin, after(20, 40, 55), 10*time.Millisecond)
	if end != after(80)[0] || stalled != 0 {
		t.Errorf("done after %v, stalled %v", end.Sub(begin), stalled)
	}
}

// A load is drawn at its own time, and not at the end of its request.
func TestTimelineSpreadsALoad(t *testing.T) {
	begin := time.Unix(1000, 0)
	o := outcome{arrival: begin, loadBegan: begin.Add(time.Second), loadEnded: begin.Add(3 * time.Second), done: begin.Add(4 * time.Second), loadedBytes: 6e9}
	var total float64
	moments := timeline([]outcome{o}, 10, func(wall time.Duration) time.Duration { return 2 * wall })
	for _, m := range moments {
		if m.FullGBps > 15.01 {
			t.Errorf("%v GB/s after %v s; it was 60 GB in 4 s of the engine's", m.FullGBps, m.Seconds)
		}
		total += m.FullGBps * moments[0].Seconds
	}
	if total < 59.9 || total > 60.1 {
		t.Errorf("%v GB in all", total)
	}
}

func TestLineKeepsItsOrder(t *testing.T) {
	var l line
	first, second := l.join(), l.join()
	waiting, cancel := context.WithCancel(t.Context())
	cancel()
	if err := second.wait(waiting); err == nil {
		t.Error("the second has its turn before the first has left")
	}
	if err := first.wait(t.Context()); err != nil {
		t.Error(err)
	}
	first.done()
	first.done()
	if err := second.wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestChooseScale(t *testing.T) {
	o := Options{Models: []string{"QwQ-32B", "DeepSeek-R1"}, Workload: UCMTable}
	profiles, err := o.profiles()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		bandwidth, copyGBps float64
		stored, free        int64
		want                int64
	}{
		"a machine of two cores":    {40 << 30, 12, 1 << 30, 0, 64},
		"a fast one":                {40 << 30, 400, 1 << 30, 0, 2},
		"nothing simulated":         {0, 12, 1 << 30, 0, 64},
		"much to store":             {40 << 30, 400, 1 << 40, 0, 128},
		"much to store, no space":   {40 << 30, 400, 1 << 40, 1 << 30, 2048},
		"far too much, no space":    {40 << 30, 400, 1 << 50, 1 << 30, 0},
		"a slow store needs little": {1 << 20, 12, 1 << 20, 0, 1},
	} {
		got, err := chooseScale(profiles, 128, c.bandwidth, c.copyGBps, demand{storedBytes: c.stored}, c.free)
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: %d, %v; want %d", name, got, err, c.want)
		}
	}
	if rate := copyRate(); rate <= 0 {
		t.Errorf("memory is copied at %v GB/s", rate)
	}
}

// Tokens and blocks follow from their names, in every process and version.
func TestPromptsAreTheSameEverywhere(t *testing.T) {
	s := streamOf(ofTrace, 0, 46)
	whole := s.appendTo(nil, 0, 1000)
	if got := s.appendTo(nil, 400, 600); !slices.Equal(got, whole[400:]) {
		t.Error("a stream depends on where it is read from")
	}
	if slices.Equal(streamOf(ofTrace, 0, 47).appendTo(nil, 0, 10), whole[:10]) || slices.Equal(streamOf(ofTwice, 0, 46).appendTo(nil, 0, 10), whole[:10]) {
		t.Error("streams of different names are the same")
	}
	l := kvstore.Layout{BlockBytes: 4096, ShardBytes: 1024}
	buf := make([]byte, l.BlockBytes)
	fillBlock(buf, kvstore.Key{1}, l)
	if err := checkBlocks([][]byte{buf}, []kvstore.Key{{1}}, l); err != nil {
		t.Error(err)
	}
	// Swapped layers are wrong, too.
	copy(buf, buf[1024:2048])
	if err := checkBlocks([][]byte{buf}, []kvstore.Key{{1}}, l); err == nil {
		t.Error("a block with its second layer in the place of the first passes")
	}
	if err := checkBlocks([][]byte{make([]byte, l.BlockBytes)}, []kvstore.Key{{1}}, l); err == nil {
		t.Error("a block of zeros passes")
	}
}
