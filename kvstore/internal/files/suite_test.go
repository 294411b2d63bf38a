package files_test

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

func TestSuite(t *testing.T) {
	for name, o := range map[string]files.Options{
		"buffered": {Streams: 4},
		"direct":   {Streams: 4, DirectIO: true},
		"flat":     {Streams: 4, DirShardDigits: new(int), Checksums: kv.ChecksumsRequire},
	} {
		if testing.Short() && name != "buffered" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			storesuite.Run(t, storesuite.Subject{
				Versions: true,
				Open: func(t testing.TB, dir string, so storesuite.Options) kv.Store {
					o := o
					o.Dirs, o.Layout, o.Namespace = []string{dir}, so.Layout, so.Namespace
					s, err := files.Open(o)
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
