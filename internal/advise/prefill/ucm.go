package prefill

import (
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/transformer"
)

// Published is a row of a published table. Its times are the mean TTFT of concurrent
// requests that arrived together.
type Published struct {
	Model       string // as transformer.Lookup knows it
	Weights     string // " in AWQ" if they were quantized
	GPU         string
	GPUs        int
	TotalTokens int
	Concurrent  int
	FullCompute time.Duration // nothing is cached
	Hit80       time.Duration // the first 80 percent are in the store
}

// UCM returns the table in the documentation of the 3FS store of Unified Cache Manager,
// a project of ModelEngine. It was measured with vLLM, with QwQ-32B on two H100 and
// DeepSeek-R1 in AWQ on eight; "4K" means 4,000 tokens.
func UCM() []Published {
	return slices.Concat(
		ucm("QwQ-32B", "", 2, [][8]float64{
			// full compute at 4, 8, 16 and 32 thousand tokens, then the same with an 80 percent hit
			{268.28, 533.62, 1144.92, 2544.43, 116.19, 222.95, 493.03, 1032.93},
			{402.22, 800.22, 1656.04, 3691.84, 231.55, 461.20, 760.39, 1490.49},
			{776.34, 1596.00, 3413.29, 6922.88, 453.37, 757.66, 1489.32, 3022.35},
			{1616.54, 3357.11, 5970.69, 12114.44, 805.95, 1528.08, 2707.25, 5578.02},
		}),
		ucm("DeepSeek-R1", " in AWQ", 8, [][8]float64{
			{376.96, 699.60, 1389.29, 2937.73, 246.79, 354.76, 595.04, 987.10},
			{567.43, 1000.06, 1989.25, 4261.70, 417.65, 581.51, 990.39, 1688.59},
			{1038.78, 1993.80, 4066.21, 8210.61, 742.64, 1023.65, 1893.01, 3588.30},
			{2098.07, 4157.40, 7270.95, 14542.17, 1232.56, 2001.83, 3493.18, 6913.94},
		}),
	)
}

// Twice is a command in the same documentation that is run twice: prompts that arrive
// together, of which at first none and then all blocks are in the store. It names the
// model and the ranks, but not the GPUs. Its first figure also stands in UCM for 8 prompts
// of DeepSeek-R1, so one may have been copied from the other.
type Twice struct {
	Model                string
	Ranks                int
	Prompts, TotalTokens int
	First, Second        time.Duration // mean TTFT
}

// UCMTwice returns that command.
func UCMTwice() Twice {
	return Twice{Model: "Qwen2.5-14B", Ranks: 2, Prompts: 12, TotalTokens: 16_000, First: seconds(7.27095), Second: seconds(1.56084)}
}

func ucm(name, weights string, gpus int, millisByConcurrency [][8]float64) (rows []Published) {
	for i, millis := range millisByConcurrency {
		for j := range 4 {
			rows = append(rows, Published{
				Model: name, Weights: weights, GPU: "H100", GPUs: gpus, TotalTokens: 4000 << j, Concurrent: 1 << i,
				FullCompute: seconds(millis[j] / 1e3), Hit80: seconds(millis[j+4] / 1e3),
			})
		}
	}
	return rows
}

// Measured returns the rows of UCM's table for a model with the same layers and
// parameters on such hardware.
func Measured(m transformer.Model, h Hardware) (rows []Published) {
	same := map[string]bool{}
	for _, r := range UCM() {
		if _, ok := same[r.Model]; !ok {
			same[r.Model] = sameCost(r.Model, m)
		}
		if same[r.Model] && r.GPU == h.GPU.Name && r.GPUs == h.Count && !h.FP8 {
			rows = append(rows, r)
		}
	}
	return rows
}

// MeasuredTwice returns UCM's command if it is for a model with the same layers and
// parameters and for as many ranks.
func MeasuredTwice(m transformer.Model, h Hardware) (t Twice, ok bool) {
	t = UCMTwice()
	return t, h.Ranks().TP == t.Ranks && sameCost(t.Model, m)
}

func sameCost(name string, m transformer.Model) bool {
	known, err := transformer.Lookup(name)
	return err == nil && known.SameCost(m)
}

// MeasuredProfile returns the profile that reproduces UCM's published full-compute
// column. It returns false if the table lacks such a model on this hardware.
func MeasuredProfile(m transformer.Model, h Hardware) (*Profile, bool) {
	p := fit(m, h, Measured(m, h))
	return p, p.Measured()
}

// fit returns the profile that reproduces rows of one model on one hardware.
func fit(m transformer.Model, h Hardware, rows []Published) *Profile {
	p := &Profile{Model: m, Hardware: h}
	for _, r := range rows {
		if !slices.Contains(p.concurrencies, r.Concurrent) {
			p.concurrencies = append(p.concurrencies, r.Concurrent)
			p.mfu = append(p.mfu, nil)
		}
		if !slices.Contains(p.lengths, r.TotalTokens) {
			p.lengths = append(p.lengths, r.TotalTokens)
		}
		each := r.FullCompute.Seconds() * 2 / float64(r.Concurrent+1)
		row := len(p.mfu) - 1
		p.mfu[row] = append(p.mfu[row], m.FLOPs(0, r.TotalTokens)/(h.FLOPS()*each))
	}
	p.checkGrid()
	return p
}
