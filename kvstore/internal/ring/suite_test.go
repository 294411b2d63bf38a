package ring_test

import (
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ring"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

// One mount serves as all of the suite's directories. It is emptied for each.
func TestSuite(t *testing.T) {
	d := daemontest.Serve(t)
	latest := ""
	storesuite.Run(t, storesuite.Subject{
		Versions: true,
		Open: func(t testing.TB, dir string, o storesuite.Options) kv.Store {
			if dir != latest {
				d.Empty(t)
				latest = dir
			}
			s, err := ring.Open(ring.Options{Mount: d.Mount, Layout: o.Layout, Namespace: o.Namespace, Entries: 16, BufferBytes: 4 << 20})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Durable:  true,
		Damage:   func(t testing.TB, _ string, seed uint64) { ucmtest.Damage(t, d.Mount, seed) },
		Verified: true,
	})
}
