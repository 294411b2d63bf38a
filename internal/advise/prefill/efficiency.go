package prefill

import "github.com/kv3fs/kv3fs/internal/advise/transformer"

// Efficiency is a range of MFU, the share of the peak that an engine reaches in prefill.
type Efficiency struct{ Low, Typical, High float64 }

// PlausibleMFU returns the range in which engines have been measured. docs/plan.md lists
// the measurements. It depends on nothing but whether tokens are routed to experts, whose
// small matrices and uneven load keep GPUs less busy.
func PlausibleMFU(m transformer.Model) Efficiency {
	if m.Weights.Mixture() {
		return Efficiency{Low: 0.1, Typical: 0.3, High: 0.5}
	}
	return Efficiency{Low: 0.35, Typical: 0.5, High: 0.6}
}

// With returns the range with another typical value, which it contains.
func (e Efficiency) With(mfu float64) Efficiency {
	return Efficiency{min(e.Low, mfu), mfu, max(e.High, mfu)}
}
