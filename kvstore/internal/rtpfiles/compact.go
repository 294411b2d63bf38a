package rtpfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// tidy drops the records of what is gone if there may be many: a process that is killed leaves
// some, and so does whoever removes files. It does not wait for that.
func (x *items) tidy() {
	if !x.spotLog.Grown() {
		return
	}
	select {
	case x.compacting <- struct{}{}:
		go func() {
			defer func() { <-x.compacting }()
			_ = x.compact()
		}()
	default:
	}
}

// endTidying waits until tidy has ended, no longer than the timeout. Nothing begins it again.
func (x *items) endTidying() error {
	select {
	case x.compacting <- struct{}{}:
		return nil
	case <-time.After(x.o.Timeout):
		return fmt.Errorf("kvstore: close: tidying up %s has not ended: %w", x.o.Root, kv.ErrTimeout)
	}
}

// compact drops the records of blocks whose files are all gone.
func (x *items) compact() error {
	defer x.young.Store(nil)
	return x.spotLog.Compact(x.mayBeSpotted())
}

// mayBeSpotted returns what reports whether the records of a block's spots may be needed. If in
// doubt, they are. It looks at the directory once, so x.young gets the blocks of files that appear
// after that.
func (x *items) mayBeSpotted() func(block kv.Key, ours bool) bool {
	young := &sync.Map{}
	x.young.Store(young)
	names := sync.OnceValues(x.fileNames)
	return func(block kv.Key, ours bool) bool {
		if _, ok := young.Load(block); ok || !ours || x.group.Err() != nil {
			return true
		}
		there, err := names()
		if err != nil {
			return true
		}
		found, err := x.spotLog.Find(block, time.Time{})
		return err != nil || slices.ContainsFunc(found.Sums, func(record []uint64) bool {
			return there[parseSpot(record).key]
		})
	}
}

// fileNames returns the keys of all names of files.
func (x *items) fileNames() (map[kv.Key]bool, error) {
	dir := filepath.Join(x.o.Root, x.o.dir)
	all := map[kv.Key]bool{}
	for _, dir := range []string{dir, filepath.Join(dir, blockfiles.SpareDir)} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if f, ok := x.format.parseFile(e.Name()); ok {
				all[f] = true
			}
		}
	}
	return all, nil
}
