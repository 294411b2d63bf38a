package empty

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

func TestStore(t *testing.T) {
	storesuite.Run(t, storesuite.Subject{
		Open:     func(_ testing.TB, _ string, o storesuite.Options) kv.Store { return New(o.Layout) },
		Discards: true,
	})
}
