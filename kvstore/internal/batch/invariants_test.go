//go:build invariants

package batch

import "testing"

func TestTooManySettledShardsAreSeen(t *testing.T) {
	g, _ := newGroup()
	b := begin(t, g, Load, nil, shards(1))
	for i := range b.Len() {
		b.Settle(i, nil)
	}
	g.Close()
	defer func() {
		if recover() == nil {
			t.Error("a batch settled more shards than it has")
		}
	}()
	b.Settle(0, nil)
}

func TestTokensGivenBackTwiceAreSeen(t *testing.T) {
	limit := LimitBatches(1)
	defer func() {
		if recover() == nil {
			t.Error("a token was given back that nobody had taken")
		}
	}()
	limit.settled(1, 0)
}
