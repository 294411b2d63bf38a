package lmcache_test

import (
	"os"
	"testing"

	layout "github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
)

func suite(t *testing.T, s storesuite.Subject, o lmcache.Options, engine func(testing.TB) transfer.Engine) {
	header := o.Header != nil
	s.Open = func(t testing.TB, dir string, so storesuite.Options) kv.Store {
		o := o
		o.BasePaths = []string{dir, dir + "/second"}
		o.Layout, o.Namespace, o.Engine = so.Layout, so.Namespace, engine(t)
		if header {
			o.Header = headerOf(so.Layout)
		}
		s, err := lmcache.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s.Durable, s.Verified, s.Versions = true, true, true
	s.Damage = func(t testing.TB, dir string, seed uint64) { damage(t, files(t, dir), seed) }
	storesuite.Run(t, s)
}

func TestSuite(t *testing.T) {
	for name, o := range map[string]lmcache.Options{
		"header":  {Chunk: chunk(), Header: &layout.Header{}, IDs: fake{}},
		"payload": {Object: &layout.ObjectName{Model: "a/b", Salt: "s"}, IDs: fake{}, TempDir: "a/tmp"},
	} {
		if testing.Short() && name != "header" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			suite(t, storesuite.Subject{}, o, func(testing.TB) transfer.Engine { return posix.New(posix.Options{Streams: 4}) })
		})
	}
}

// Through the rings of a daemon.
func TestSuiteOnAMount(t *testing.T) {
	if testing.Short() {
		t.Skip("the suite of package ring runs on a mount")
	}
	d := daemontest.Serve(t)
	subject := storesuite.Subject{Dir: func(t testing.TB) string {
		dir, err := os.MkdirTemp(d.Mount, "lmcache-")
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}}
	suite(t, subject, lmcache.Options{Chunk: chunk(), Header: &layout.Header{}, IDs: fake{}, Mount: d.Mount}, func(t testing.TB) transfer.Engine {
		engine, err := ringio.New(ringio.Options{Mount: d.Mount, Entries: 16, BufferBytes: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return engine
	})
}
