package segment

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
)

func TestStore(t *testing.T) {
	for name, direct := range map[string]bool{"buffered": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			storesuite.Run(t, storesuite.Subject{
				Versions: true,
				Open: func(t testing.TB, dir string, so storesuite.Options) kv.Store {
					o := options(dir, so.Layout, 10, so.Blocks/5)
					o.Namespace, o.DirectIO = so.Namespace, direct
					return open(t, o)
				},
				Durable:  true,
				Damage:   func(t testing.TB, dir string, seed uint64) { damage(t, dir, seed) },
				Verified: true,
			})
		})
	}
}
