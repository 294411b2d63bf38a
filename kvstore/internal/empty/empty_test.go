package empty

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
)

func TestStore(t *testing.T) {
	storesuite.Run(t, storesuite.Subject{
		Open:     func(_ testing.TB, _ string, o storesuite.Options) kv.Store { return New(o.Layout) },
		Discards: true,
	})
}

func TestDeleteAndKeys(t *testing.T) {
	s := New(kv.Layout{BlockBytes: 8, ShardBytes: 8})
	for k, err := range s.Keys(t.Context()) {
		t.Error(k, err)
	}
	if err := s.Delete(t.Context(), []kv.Key{{1}}); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, err := range s.Keys(t.Context()) {
		if n++; err != kv.ErrClosed {
			t.Error(err)
		}
	}
	if n != 1 {
		t.Errorf("%d errors of a store that is closed", n)
	}
	if err := s.Delete(t.Context(), nil); err != kv.ErrClosed {
		t.Error(err)
	}
}
