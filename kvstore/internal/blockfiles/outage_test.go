package blockfiles

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/faultdir"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// onFaulty opens a store on a directory whose calls can fail, and saves a block.
func onFaulty(t *testing.T) (*Store, *faultdir.Dir, kv.Key, []kv.Shard) {
	t.Helper()
	dir := faultdir.New(t)
	l := kv.Layout{BlockBytes: 1000, ShardBytes: 500}
	s := openOver(t, Options{Layout: l, Roots: []string{dir.Path}, OpenFiles: 8}, func(e transfer.Engine) transfer.Engine { return e })
	key := kv.Key{1}
	shards := l.ByBlock([]kv.Key{key}, [][]byte{make([]byte, l.BlockBytes)})
	task, err := s.Save(t.Context(), shards)
	wait(t, task, err)
	return s, dir, key, shards
}

func (s *Store) finds(t *testing.T, key kv.Key) bool {
	t.Helper()
	found := make([]bool, 1)
	if err := s.Lookup(t.Context(), []kv.Key{key}, found); err != nil {
		t.Fatal(err)
	}
	return found[0]
}

// A block that could not be read for a moment is found again after a while.
func TestUnreadableIsForgotten(t *testing.T) {
	s, dir, key, shards := onFaulty(t)
	task, err := s.Load(t.Context(), shards) // the checksums are known
	wait(t, task, err)
	dir.Fail(faultdir.EIO("read"))
	if task, err = s.Load(t.Context(), shards); err == nil {
		err = task.Wait(t.Context())
	}
	if !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if s.finds(t, key) {
		t.Error("found though it cannot be read")
	}
	dir.Heal()
	s.unreadable.mu.Lock()
	for k, f := range s.unreadable.files {
		f.until = f.until.Add(-kv.UnreadableFor)
		s.unreadable.files[k] = f
	}
	s.unreadable.mu.Unlock()
	if !s.finds(t, key) {
		t.Error("not found though it can be read")
	}
}

// A file system that fails just while a block gets its name, and works again when it gets its spare one, has
// the block in its own place.
func TestSavedAtTheEdgeOfAnOutage(t *testing.T) {
	s, dir, key, shards := onFaulty(t)
	if err := s.Delete(t.Context(), []kv.Key{key}); err != nil {
		t.Fatal(err)
	}
	own := filepath.Base(s.path(s.roots[0], key))
	var over atomic.Bool
	dir.Fail(func(c faultdir.Call) syscall.Errno {
		if c.Op == "mkdir" && strings.Contains(SpareDir, c.Name) {
			over.Store(true)
		}
		if c.Name == own && !over.Load() {
			return syscall.EIO
		}
		return 0
	})
	task, err := s.Save(t.Context(), shards)
	wait(t, task, err)
	if !over.Load() {
		t.Error("the block has not come to its spare place")
	}
	if !s.finds(t, key) {
		t.Error("not found after it was saved")
	}
	task, err = s.Load(t.Context(), shards)
	wait(t, task, err)
}

// GlusterFS answers ESTALE to opens of a file that another host has just replaced, for about a second: the block is loaded then. One that goes on so is a miss.
func TestStaleOpens(t *testing.T) {
	s, dir, _, shards := onFaulty(t)
	var calls atomic.Int64
	stale := func(n int64) {
		calls.Store(0)
		for _, h := range s.handles.close() { // so that Load opens the file
			_ = h.file.Close()
		}
		dir.Fail(func(c faultdir.Call) syscall.Errno {
			if c.Op == "open" && calls.Add(1) <= n {
				return syscall.ESTALE
			}
			return 0
		})
	}
	s.stale = time.Minute
	stale(5) // the kernel tries each once more
	task, err := s.Load(t.Context(), shards)
	wait(t, task, err)
	if calls.Load() < 6 {
		t.Errorf("%d opens", calls.Load())
	}
	s.stale = 200 * time.Millisecond
	stale(1 << 60)
	if task, err = s.Load(t.Context(), shards); err == nil {
		err = task.Wait(t.Context())
	}
	if !errors.Is(err, kv.ErrMiss) {
		t.Errorf("an open that goes on answering ESTALE: %v", err)
	}
}

// A mount that is stale as a whole is away: no load waits for it, nor takes its blocks for missing.
func TestStaleRoot(t *testing.T) {
	s, dir, key, shards := onFaulty(t)
	s.stale = time.Hour
	for _, h := range s.handles.close() {
		_ = h.file.Close()
	}
	dir.Fail(func(faultdir.Call) syscall.Errno { return syscall.ESTALE })
	for name, do := range map[string]func(context.Context, []kv.Shard) (*kv.Task, error){"load": s.Load, "save": s.Save} {
		task, err := do(t.Context(), shards)
		if err == nil {
			err = task.Wait(t.Context())
		}
		if !kv.IsAway(err) || errors.Is(err, kv.ErrMiss) || !strings.Contains(err.Error(), "mount its file system again") {
			t.Errorf("a %s meanwhile: %v", name, err)
		}
	}
	if err := s.Lookup(t.Context(), []kv.Key{key}, make([]bool, 1)); !kv.IsAway(err) {
		t.Errorf("a lookup meanwhile: %v", err)
	}
	dir.Heal()
	task, err := s.Load(t.Context(), shards)
	wait(t, task, err)
}

// Another process has replaced a block by a variant of its own, and its checksum log cannot be read just now.
// That proves no damage.
func TestNoDamageWithoutAllLogs(t *testing.T) {
	s, dir, key, shards := onFaulty(t)
	task, err := s.Load(t.Context(), shards)
	wait(t, task, err)
	path := s.path(s.roots[0], key)
	other := openOver(t, Options{Layout: s.Layout(), Roots: []string{dir.Path}}, func(e transfer.Engine) transfer.Engine { return e })
	beneath := filepath.Join(dir.Beneath, strings.TrimPrefix(path, dir.Path))
	dir.Fail(func(c faultdir.Call) syscall.Errno {
		if c.Op == "lookup" && strings.HasSuffix(c.Name, ".log") {
			return syscall.EIO
		}
		return 0
	})
	bytes := []byte(strings.Repeat("another result", 100))[:s.Layout().BlockBytes]
	half := s.Layout().ShardBytes
	if err := other.roots[0].sums.Record(key, []uint64{blockhead.Sum(bytes[:half]), blockhead.Sum(bytes[half:])}); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(beneath, os.O_WRONLY, 0) // the same file, as far as its inode tells
	if err == nil {
		_, err = f.Write(bytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if task, err = s.Load(t.Context(), shards); err == nil {
		err = task.Wait(t.Context())
	}
	if err == nil || errors.Is(err, kv.ErrMiss) {
		t.Errorf("loading, while a log cannot be read: %v", err)
	}
	if _, err := os.Stat(beneath); err != nil {
		t.Errorf("the block was put aside: %v", err)
	}
	if s.finds(t, key) {
		t.Error("found, so that nobody saves it again")
	}
	dir.Heal()
	task, err = s.Load(t.Context(), shards)
	wait(t, task, err)
}
