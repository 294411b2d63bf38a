package blockfiles

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// forgetful is a Format that has places for its keys only at times, as one that remembers them.
type forgetful struct {
	UCM
	forgets atomic.Bool
}

func (f *forgetful) Place(key kv.Key) (Place, error) {
	if f.forgets.Load() {
		return Place{}, errors.New("it has forgotten the key")
	}
	return f.UCM.Place(key)
}

// A compaction keeps the records of a block that waits for its place in the spare directory.
func TestCompactKeepsSpareBlocks(t *testing.T) {
	for what, forgets := range map[string]bool{"by its place": false, "by its name": true} {
		t.Run(what, func(t *testing.T) {
			l := kv.Layout{BlockBytes: 1000, ShardBytes: 500}
			format := &forgetful{UCM: UCM{BlockBytes: l.BlockBytes}}
			s := openOver(t, Options{Layout: l, Format: format}, func(e transfer.Engine) transfer.Engine { return e })
			key := kv.Key{1}
			shards := l.ByBlock([]kv.Key{key}, [][]byte{make([]byte, l.BlockBytes)})
			task, err := s.Save(t.Context(), shards)
			wait(t, task, err)
			r := s.roots[0]
			place, err := format.Place(key)
			if err == nil {
				err = os.Mkdir(filepath.Join(r.dir, SpareDir), dirMode)
			}
			if err == nil {
				err = os.Rename(r.in(place), r.spare(place))
			}
			if err != nil {
				t.Fatal(err)
			}
			format.forgets.Store(forgets)
			if err := s.compact(r); err != nil {
				t.Fatal(err)
			}
			format.forgets.Store(false)
			s.settleSpares(r)
			task, err = s.Load(t.Context(), shards)
			wait(t, task, err)
			if n := s.Stats().UnverifiedShards; n > 0 {
				t.Errorf("%d shards were loaded without a checksum", n)
			}
		})
	}
}
