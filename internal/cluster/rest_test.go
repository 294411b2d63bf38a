package cluster

import (
	"testing"
	"time"
)

func TestRestsGrow(t *testing.T) {
	c := &Cluster{}
	if c.resting() != 0 {
		t.Error("a host that never gave up the lead rests")
	}
	for want := time.Minute; want <= 32*time.Minute; want *= 2 {
		if got := c.Rest(); got != want {
			t.Errorf("a rest of %v; want %v", got, want)
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
