package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

func TestRestsGrow(t *testing.T) {
	c := &Cluster{}
	if c.resting() != 0 || c.Rests() != nil {
		t.Error("a host that never gave up the lead rests")
	}
	for want := time.Minute; want <= 32*time.Minute; want *= 2 {
		if got := c.Rest(); got != want {
			t.Errorf("a rest of %v; want %v", got, want)
		}
		if err := c.Rests(); !errors.Is(err, ErrRests) {
			t.Error(err)
		}
		if left := c.resting(); left <= 0 || left > want {
			t.Errorf("%v of %v are left", left, want)
		}
	}
	for range 2 {
		if got := c.Rest(); got != mostRest {
			t.Errorf("a rest of %v; want %v", got, mostRest)
		}
	}
}

// A host that rests is no candidate while another one leads, and one soon when nobody does: when all have gone, and when the one that was elected does not
// get to lead.
func testRest(t *testing.T, m *etcd.Members) {
	config := configOf(t, m, "other")
	config.LeaseTTL = shortLease
	other := join(t, config)
	config.HostID = "rests"
	rests := join(t, config)
	for _, gone := range []bool{false, true} {
		for rests.Rest() < mostRest {
		}
		term := elect(t, other) // and does not say that it leads
		ctx, cancel := context.WithCancel(background(t))
		ended := make(chan error, 1)
		go func() {
			_, err := rests.Campaign(ctx)
			ended <- err
		}()
		if gone {
			if err := term.Resign(ctx); err != nil {
				t.Error(err)
			}
		}
		await(t, "it is a candidate", func() bool {
			queue, _, err := other.candidates(ctx)
			return err == nil && len(queue) > 0 && queue[len(queue)-1].ID == "rests"
		})
		cancel()
		<-ended
		if !gone {
			if err := term.Resign(background(t)); err != nil {
				t.Error(err)
			}
		}
	}
}
