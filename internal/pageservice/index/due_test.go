package index

import (
	"fmt"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// What is noted of reservations and of the order of eviction does not pile up, however
// many keys come and go before a reservation or a lease could have ended.
func TestNothingPilesUp(t *testing.T) {
	h := newHarness(t, pageservice.Options{}).(*harness)
	const numPages, batch = 512, 256
	if _, err := h.b.Initialize(ctx, benchSpace, 0, pageservice.RankOptions{NumPages: numPages}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		keys := make([]string, batch)
		for k := range keys {
			keys[k] = fmt.Sprint(i, " ", k)
		}
		h.Advance(1)
		save(t, h.b, keys)
	}
	r := h.b.find(benchSpace).ranks[0]
	for name, n := range map[string]int{"due": len(r.due), "ready": len(r.order.ready), "waiting": len(r.order.waiting)} {
		if n > 2*numPages+2*batch+voidSlack {
			t.Errorf("%d are %s", n, name)
		}
	}
}
