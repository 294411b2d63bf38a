package gdsfiles

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

// soakEnv adds the second way to open the store, which the nightly run tries.
const soakEnv = "KV3FS_SOAK"

func TestSuite(t *testing.T) {
	for name, o := range map[string]Options{
		"buffered":         {},
		"direct, required": {DirectIO: true, Checksums: kv.ChecksumsRequire},
	} {
		if os.Getenv(soakEnv) == "" && name != "buffered" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			storesuite.Run(t, storesuite.Subject{
				Versions: true,
				Open: func(t testing.TB, dir string, so storesuite.Options) kv.Store {
					o := o
					o.Dirs, o.Layout, o.Namespace = []string{dir}, so.Layout, so.Namespace
					o.Model, o.WorldSize, o.DType = "kv3fs/suite", 1, "uint8"
					o.Shape, o.MemoryFormat = []int64{so.Layout.BlockBytes}, 4
					s, err := Open(o)
					if err != nil {
						t.Fatal(err)
					}
					return s
				},
				Durable:  true,
				Damage:   ucmtest.Damage,
				Verified: true,
			})
		})
	}
}
