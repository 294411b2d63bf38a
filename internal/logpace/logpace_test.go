package logpace

import (
	"fmt"
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	var p Pace
	now := time.Unix(1e9, 0)
	expect := func(name string, wantSuppressed int, want bool) {
		t.Helper()
		if n, yes := p.at(name, now); n != wantSuppressed || yes != want {
			t.Errorf("%s: %d, %v; want %d, %v", name, n, yes, wantSuppressed, want)
		}
	}
	expect("a", 0, true)
	for range 7 {
		expect("a", 0, false)
	}
	expect("b", 0, true)
	now = now.Add(every)
	expect("a", 7, true)
	expect("a", 0, false)
	now = now.Add(every)
	expect("a", 1, true)
	now = now.Add(every)
	expect("a", 0, true)
}

func TestPaceIsBounded(t *testing.T) {
	var p Pace
	now := time.Unix(1e9, 0)
	logged := 0
	for i := range 10 * mostKinds {
		if _, yes := p.at(fmt.Sprint(i), now); yes {
			logged++
		}
	}
	if logged > mostKinds+1 || len(p.kinds) > mostKinds+1 {
		t.Errorf("%d messages, %d kinds kept", logged, len(p.kinds))
	}
	if _, yes := p.at("new", now.Add(forget+1)); !yes || len(p.kinds) != 1 {
		t.Errorf("logged %v, %d kinds kept after an hour", yes, len(p.kinds))
	}
}
