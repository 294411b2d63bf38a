package enginebench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

// A load is drawn at its own time, and not at the end of its request.
func TestTimelineSpreadsALoad(t *testing.T) {
	o := outcome{arrival: 0, loadBegan: 2 * time.Second, loadEnded: 6 * time.Second, tokens: []time.Duration{8 * time.Second}, loadedBytes: 6e9}
	var total float64
	moments := timeline([]outcome{o}, &Subject{scale: 10})
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
