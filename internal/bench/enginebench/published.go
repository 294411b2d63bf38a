package enginebench

import "github.com/kv3fs/kv3fs/internal/advise/prefill"

// publishedRun returns the mean time to the first token, in ms, that the documentation of
// UCM's 3FS store prints for a run of random-twice, or 0 if these are other prompts. The
// document names the model and two ranks, not the GPUs.
func publishedRun(s *Subject, p pass, o Options) float64 {
	const outputTokens = 2
	t := prefill.UCMTwice()
	if o.Workload != RandomTwice || s.Name() != t.Model || o.Prompts != t.Prompts || p.atOnce < t.Prompts ||
		p.inputTokens != t.TotalTokens || o.OutputTokens != outputTokens {
		return 0
	}
	return map[string]float64{firstRun: milliseconds(t.First), secondRun: milliseconds(t.Second)}[p.name]
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
