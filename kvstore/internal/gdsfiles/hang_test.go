package gdsfiles

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/hungdir"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A gds_path that hangs makes an Open fail in its time.
func TestOpenOfADirectoryThatHangs(t *testing.T) {
	hungdir.Each(t, func(t *testing.T, dir string) {
		o := options(dir)
		o.Timeout = 100 * time.Millisecond
		s, err := Open(o)
		if s != nil {
			s.Close()
		}
		if !errors.Is(err, kv.ErrTimeout) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v", err)
		}
	})
}
