package policybench

import (
	"fmt"
	"io"
	"strings"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// Report holds hit ratios: hits divided by blocks requested.
type Report struct {
	Trace          string  `json:"trace"`
	Requests       int     `json:"requests"`
	References     int     `json:"block_references"`
	DistinctBlocks int     `json:"distinct_blocks"`
	UnlimitedRatio float64 `json:"unlimited_hit_ratio"` // of a cache that holds everything
	Capacities     []Row   `json:"capacities"`
}

// Row holds the hit ratios at one capacity.
type Row struct {
	Capacity string  `json:"capacity"` // as it was given
	Blocks   int     `json:"blocks"`
	Ours     float64 `json:"kv3fs"`
	LRU      float64 `json:"lru"`
	FIFO     float64 `json:"fifo"`
	LFU      float64 `json:"lfu"`
	S3FIFO   float64 `json:"s3fifo"`
	Optimum  float64 `json:"optimum"`
	ToLRU    float64 `json:"ratio_to_lru,omitempty"` // left out if LRU has no hit
	Aim      float64 `json:"aim,omitempty"`          // for Ours, on the trace that has one
}

// ratioOf returns the field of a contender.
func (r *Row) ratioOf(name string) *float64 {
	return map[string]*float64{"kv3fs": &r.Ours, "lru": &r.LRU, "fifo": &r.FIFO, "lfu": &r.LFU, "s3fifo": &r.S3FIFO}[name]
}

// aimToLRU is the least ratio to LRU that is aimed at, on any trace.
const aimToLRU = 0.98

// aim returns the hit ratio that is aimed at on Mooncake's conversation trace, which is
// known by its counts, and 0 for others. It decides nothing.
func (r *Report) aim(c Capacity) float64 {
	if r.Requests != 12031 || r.References != 288500 || r.DistinctBlocks != 182790 {
		return 0
	}
	return map[float64]float64{1: 0.105, 5: 0.21, 10: 0.29, 20: 0.34}[c.Percent]
}

// WriteTable writes the report as a table.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d requests for %d blocks, %d of them different; a cache of all would serve %.4f\n\n",
		r.Trace, r.Requests, r.References, r.DistinctBlocks, r.UnlimitedRatio)
	t := measure.Table{Keys: 2, Columns: []measure.Column{
		{Head: "capacity", Left: true}, {Head: "blocks"}, {Head: "kv3fs"}, {Head: "LRU"}, {Head: "FIFO"}, {Head: "LFU"}, {Head: "S3-FIFO"}, {Head: "optimum"}, {Head: "kv3fs/LRU"},
		{Head: "aim, for information", Left: true},
	}}
	for _, c := range r.Capacities {
		text := func(ratio float64) string { return fmt.Sprintf("%.4f", ratio) }
		toLRU := "-"
		if c.LRU > 0 {
			toLRU = fmt.Sprintf("%.3f", c.ToLRU)
		}
		aim := fmt.Sprintf("kv3fs/LRU at least %v", aimToLRU)
		if c.Aim > 0 {
			aim += fmt.Sprintf(", kv3fs at least %v", c.Aim)
		}
		t.Rows = append(t.Rows, []string{c.Capacity, fmt.Sprint(c.Blocks), text(c.Ours), text(c.LRU), text(c.FIFO), text(c.LFU), text(c.S3FIFO), text(c.Optimum), toLRU, aim})
	}
	t.Write(&b)
	b.WriteString(`
Hit ratio of blocks: those at the beginning of prompts that the cache held, up to the
first that it lacked, of all blocks requested. A percentage is of the trace's different
blocks. optimum: the most that a policy can serve that knows the whole trace.
`)
	_, err := io.WriteString(w, measure.Wrap(b.String()))
	return err
}
