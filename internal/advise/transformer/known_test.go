package transformer

import (
	"math"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/advise/model"
)

// Every model with a known name has an entry, its parameters add up to the published
// number, and its KV is that of internal/advise/model.
func TestKnown(t *testing.T) {
	all, err := entries()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range model.AllNames() {
		m, p, err := parseEntry(all, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := m.Weights.Params() / 1e9; math.Abs(got/p.Billions-1) > 0.015 {
			t.Errorf("%s: %.2f billion parameters, published %.2f", name, got, p.Billions)
		}
		active := (m.Weights.Active() + m.Weights.embeddings()) / 1e9
		if m.Weights.Mixture() != (p.ActiveBillions > 0) {
			t.Errorf("%s: mixture %v, published active parameters %g", name, m.Weights.Mixture(), p.ActiveBillions)
		} else if p.ActiveBillions > 0 && (active < p.ActiveBillions*0.98 || m.Weights.Active()/1e9 > max(p.ActiveBillions*1.05, p.ActiveBillions+0.5)) { // published in whole billions
			t.Errorf("%s: %.2f billion active parameters, %.2f without embeddings, published %.2f", name, active, m.Weights.Active()/1e9, p.ActiveBillions)
		}
		if p.Source == "" || strings.Count(p.Source, "/") != 1 {
			t.Errorf("%s: source %q", name, p.Source)
		}
		shape, err := model.Lookup(name)
		if err != nil {
			if len(m.Kinds) < 2 && m.Kinds[0].Kind != Sparse {
				t.Errorf("%s: %v, but its layers are alike", name, err)
			}
			continue
		}
		for _, tp := range []int{1, 2, 8} {
			want, wantErr := shape.BytesPerToken(tp)
			got, err := m.RankBytesPerToken(Ranks{TP: tp})
			if got != want || (err == nil) != (wantErr == nil) {
				t.Errorf("%s, TP %d: %d bytes, %v; want %d, %v", name, tp, got, err, want, wantErr)
			}
		}
	}
}
