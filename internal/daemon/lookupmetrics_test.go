package daemon

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/fs/lookups"
)

// A model that loses its row to another user's makes no other series jump, and what it has counted stays in the sums of the API.
func TestModelsThatLoseTheirRow(t *testing.T) {
	looked := lookups.New()
	v := &view{looked: looked}
	read := func(uid uint32, model string, times int) {
		class := looked.ClassOf(fmt.Sprintf("kv/%s@1@0@1a2b3c4d5e6f7081@half.data", model), uid)
		for range times {
			class.FromStart()
		}
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newLookupMetrics(looked))
	shown := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				all[fmt.Sprint(f.GetName(), m.Label)] = m.Counter.GetValue()
			}
		}
		return all
	}
	const models, each = 100, 1000 // more than are counted apart
	for i := range models {
		read(1, fmt.Sprint("m", i), each)
	}
	before := shown()
	read(2, "another", 1)
	read(2, "one-more", 1)
	after := shown()
	gone := 0
	for series, n := range before {
		if now, ok := after[series]; !ok {
			gone++
		} else if now != n {
			t.Errorf("%s goes from %v to %v", series, n, now)
		}
	}
	if gone == 0 {
		t.Error("no model has lost its row")
	}
	if is := v.Hits(); is.Hits != models*each+2 || is.Engines[0].Engine != "other" {
		t.Errorf("the API says %d hits, most of %+v", is.Hits, is.Engines[0])
	}
	if m := len(v.Hits().Engines); m != len(after)/2 {
		t.Errorf("the API has %d engines and models, and the metrics %d", m, len(after)/2)
	}
}
