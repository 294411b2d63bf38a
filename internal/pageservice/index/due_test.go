package index

import (
	"fmt"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// The queues of reservations and of the order of eviction stay short, however many keys
// come and go before a reservation or a lease ends.
func TestQueuesStayShort(t *testing.T) {
	clock := time.Unix(1_800_000_000, 0)
	x, err := open(t.TempDir(), Options{Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	const numPages, batch = 512, 256
	if _, err := x.Initialize(ctx, benchSpace, 0, pageservice.RankOptions{NumPages: numPages}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		keys := make([]string, batch)
		for k := range keys {
			keys[k] = fmt.Sprint(i, " ", k)
		}
		clock = clock.Add(1)
		save(t, x, keys)
	}
	r := x.find(benchSpace).ranks[0]
	for name, n := range map[string]int{"due": len(r.due), "ready": len(r.order.ready), "waiting": len(r.order.waiting)} {
		if n > 2*numPages+2*batch+voidSlack {
			t.Errorf("the queue %s has %d items", name, n)
		}
	}
}
