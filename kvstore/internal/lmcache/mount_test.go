package lmcache_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/hungdir"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/lmcache"
)

// A base path that hangs ends in an error that names it when the timeout has passed, both where its
// mount is looked for and where it is opened.
func TestBasePathThatHangs(t *testing.T) {
	hungdir.Each(t, func(t *testing.T, dir string) {
		const timeout = 100 * time.Millisecond
		if _, err := lmcache.FindMount([]string{dir}, timeout); !errors.Is(err, kv.ErrTimeout) || !strings.Contains(err.Error(), dir) {
			t.Errorf("FindMount: %v", err)
		}
		o := in(dir)
		o.Timeout = timeout
		if _, err := lmcache.Open(o); !errors.Is(err, kv.ErrTimeout) || !strings.Contains(err.Error(), dir) {
			t.Errorf("Open: %v", err)
		}
	})
}
