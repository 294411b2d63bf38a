package cache_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

// shared is a name for a cache that is gone at the test's end.
func shared(t testing.TB) string {
	name := "test-" + wire.NewUUID().String()
	t.Cleanup(func() { os.Remove(object(name)) })
	return name
}

func object(name string) string {
	return filepath.Join(shm.Dir, memory.NamePrefix+"cache-"+name)
}
