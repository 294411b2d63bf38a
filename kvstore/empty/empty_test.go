package empty

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/kv"
	"github.com/kv3fs/kv3fs/kvstore/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Subject{
		Open:     func(_ testing.TB, _ string, o storetest.Options) kv.Store { return New(o.Layout) },
		Discards: true,
	})
}
