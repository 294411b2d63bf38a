package rtpfiles

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// itemsOf returns the store of files with several blocks.
func itemsOf(s *Store) *items { return s.Store.(*items) }

// A process that knows where a block was finds it where another process has put it since, and
// deletes it from there.
func TestItemsThatAnotherProcessReplaces(t *testing.T) {
	root := t.TempDir()
	a, b := openTest(t, "RtpLlm", Options{Root: root}), openTest(t, "RtpLlm", Options{Root: root})
	save(t, a, 0, 8) // a prompt that seems to end here
	has(t, root, itemPath, testLayout, span{0, 8})
	count(t, b, 0, 8, 8)
	hits(t, b, 0, 8, true)
	save(t, a, 7, 9)
	flush(t, a)
	has(t, root, itemPath, testLayout, span{0, 16})
	hits(t, b, 0, 8, true)
	count(t, b, 0, 17, 16)

	save(t, a, 100, 8)
	count(t, b, 100, 8, 8)
	save(t, a, 107, 4)
	flush(t, a)
	has(t, root, itemPath, testLayout, span{0, 16}, span{100, 11})
	if err := b.Delete(t.Context(), prompt(100, 1)); err != nil {
		t.Fatal(err)
	}
	has(t, root, itemPath, testLayout, span{0, 16})
	hits(t, a, 100, 11, false)
}

// interrupting is an engine that calls something before it first writes.
type interrupting struct {
	transfer.Engine
	call func()
	once sync.Once
}

func (e *interrupting) Do(ctx context.Context, ops []transfer.Op) {
	if ops[0].Write {
		e.once.Do(e.call)
	}
	e.Engine.Do(ctx, ops)
}

// Records of an item that are dropped before its file is there are made again: a block that
// was saved is found.
func TestRecordsThatAreDroppedBeforeTheFile(t *testing.T) {
	each(t, func(t *testing.T, name, _ string, _ func(first, n int) string) {
		for what, drop := range map[string]func(a, b *Store) error{
			"compacted": func(a, _ *Store) error { return itemsOf(a).compact() },
			"deleted":   func(_, b *Store) error { return b.Delete(t.Context(), prompt(0, 16)) },
		} {
			t.Run(what, func(t *testing.T) {
				root := t.TempDir()
				a, b := openTest(t, name, Options{Root: root}), openTest(t, name, Options{Root: root})
				x := itemsOf(a)
				var err error
				interrupt := &interrupting{Engine: x.engine, call: func() { err = drop(a, b) }}
				x.engine = interrupt
				save(t, a, 0, 16)
				interrupt.once.Do(func() { t.Error("nothing was interrupted") })
				if err != nil {
					t.Fatal(err)
				}
				hits(t, openTest(t, name, Options{Root: root}), 0, 16, true)
				hits(t, a, 0, 16, true)
				hits(t, b, 0, 16, true)
			})
		}
	})
}

// A compaction that looks at the directory before the file of an item is there, and at the records
// after that, keeps them.
func TestItemsThatAppearDuringCompaction(t *testing.T) {
	root := t.TempDir()
	s := openTest(t, "RtpLlm", Options{Root: root})
	x := itemsOf(s)
	var needed func(kv.Key, bool) bool
	x.engine = &interrupting{Engine: x.engine, call: func() {
		needed = x.mayBeSpotted()
		if err := x.spotLog.Record(prompt(99, 1)[0], spot{file{prompt(99, 1)[0], 16}, 0}.record()); err != nil || needed(prompt(99, 1)[0], true) {
			t.Errorf("a record of nothing is needed, %v", err)
		}
	}}
	save(t, s, 0, 16)
	if err := x.spotLog.Compact(needed); err != nil {
		t.Fatal(err)
	}
	hits(t, s, 0, 16, true)
	hits(t, openTest(t, "RtpLlm", Options{Root: root}), 0, 16, true)
}

// The record of which block is where does not grow with what is gone, though nobody calls Flush.
func TestRecordsOfNothingGo(t *testing.T) {
	root := t.TempDir()
	s := openTest(t, "RtpLlm", Options{Root: root})
	x := itemsOf(s)
	save(t, s, 0, 16)
	for i := 1; !x.spotLog.Grown(); i++ {
		key := keys.Int64Key(int64(i))
		if err := x.spotLog.Record(key, spot{file{key, 16}, i % 16}.record()); err != nil {
			t.Fatal(err)
		}
	}
	save(t, s, 16, 16)
	size := func() (bytes int64) {
		logs, err := filepath.Glob(filepath.Join(root, testDir.Path(), spotsDir, "*.log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range logs {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			bytes += info.Size()
		}
		return bytes
	}
	eventually(t, "the log is compacted", func() bool { return size() < 1<<20 })
	hits(t, s, 0, 32, true)
	hits(t, openTest(t, "RtpLlm", Options{Root: root}), 0, 32, true)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for patience := time.Now().Add(5 * time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(patience) {
			t.Fatalf("not in five minutes: %s", what)
		}
	}
}

// Close leaves nothing open, whenever the files of an item are being opened.
func TestFilesThatOpenLate(t *testing.T) {
	open := func(t *testing.T, timeout time.Duration) (*items, func() []*blockfiles.Store) {
		s, err := OpenRTPLLM(Options{Root: t.TempDir(), Layout: testLayout, Timeout: timeout}, testDir)
		if err != nil {
			t.Fatal(err)
		}
		x := itemsOf(s)
		var mu sync.Mutex
		var opened []*blockfiles.Store
		openFiles := x.openFiles
		x.openFiles = func(blocks int) (*blockfiles.Store, error) {
			files, err := openFiles(blocks)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				opened = append(opened, files)
			}
			return files, err
		}
		return x, func() []*blockfiles.Store {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(opened)
		}
	}
	isClosed := func(s *blockfiles.Store) bool { return errors.Is(s.Flush(context.Background()), kv.ErrClosed) }

	t.Run("after Close has given up", func(t *testing.T) {
		x, opened := open(t, 200*time.Millisecond)
		held, begun := make(chan struct{}), make(chan struct{}, 3)
		openFiles := x.openFiles
		x.openFiles = func(blocks int) (*blockfiles.Store, error) {
			begun <- struct{}{}
			<-held
			return openFiles(blocks)
		}
		var wg sync.WaitGroup
		for blocks := 1; blocks <= 3; blocks++ {
			wg.Go(func() {
				if _, err := x.filesOf(blocks); !errors.Is(err, kv.ErrTimeout) {
					t.Errorf("files that do not open in time: %v", err)
				}
			})
		}
		for range 3 {
			<-begun
		}
		wg.Wait()
		if err := x.Close(); !errors.Is(err, kv.ErrTimeout) {
			t.Errorf("Close leaves files that are being opened, and says %v", err)
		}
		close(held)
		eventually(t, "the files are closed", func() bool {
			all := opened()
			return len(all) == 3 && !slices.ContainsFunc(all, func(s *blockfiles.Store) bool { return !isClosed(s) })
		})
	})
	t.Run("while Close waits", func(t *testing.T) {
		x, opened := open(t, 5*time.Minute)
		held, begun := make(chan struct{}), make(chan struct{}, 2)
		openFiles := x.openFiles
		x.openFiles = func(blocks int) (*blockfiles.Store, error) {
			begun <- struct{}{}
			<-held
			if blocks == 2 {
				return nil, os.ErrPermission
			}
			return openFiles(blocks)
		}
		for blocks := 1; blocks <= 2; blocks++ {
			go x.filesOf(blocks)
			<-begun
		}
		closed := make(chan error)
		go func() { closed <- x.Close() }()
		<-x.group.Closing().Done()
		close(held)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if all := opened(); len(all) != 1 || !isClosed(all[0]) {
			t.Errorf("of %d stores of files some are left open", len(all))
		}
	})
	t.Run("while Close waits, and they do not close", func(t *testing.T) {
		x, _ := open(t, 5*time.Minute)
		held, begun := make(chan struct{}), make(chan struct{})
		x.openFiles = func(blocks int) (*blockfiles.Store, error) {
			close(begun)
			<-held
			return blockfiles.Open(blockfiles.Options{
				Name: "late", Layout: testLayout, Roots: []string{t.TempDir()}, Format: x.format, Engine: unclosable{x.engine},
			})
		}
		go x.filesOf(2)
		<-begun
		closed := make(chan error)
		go func() { closed <- x.Close() }()
		eventually(t, "Close waits", func() bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.closed
		})
		close(held)
		if err := <-closed; !errors.Is(err, errUnclosable) {
			t.Errorf("Close says %v", err)
		}
	})
	t.Run("for a listing after Close", func(t *testing.T) {
		x, opened := open(t, 5*time.Minute)
		save(t, &Store{Store: x}, 0, 16)
		want := map[kv.Key]bool{}
		for _, key := range prompt(0, 16) {
			want[key] = true
		}
		var failed error
		for key, err := range x.Keys(t.Context()) {
			if failed = err; err != nil {
				break
			}
			if delete(want, key); len(want) == 0 {
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		if len(want) > 0 || !errors.Is(failed, kv.ErrClosed) {
			t.Errorf("the listing lacks %v and ends with %v", slices.Collect(maps.Keys(want)), failed)
		}
		if slices.ContainsFunc(opened(), func(s *blockfiles.Store) bool { return !isClosed(s) }) {
			t.Error("files are left open")
		}
	})
}

// Blocks that are saved while others are put into items do not queue up behind them, call by
// call.
func TestPacksDoNotQueueUp(t *testing.T) {
	s := openTest(t, "RtpLlm", Options{Root: t.TempDir()})
	x, ok := s.Store.(*items)
	if !ok {
		t.Fatalf("%T", s.Store)
	}
	const calls = 20
	x.packing <- struct{}{}
	returned := make(chan struct{}, calls)
	for n := range calls {
		go func() {
			x.packFull(map[kv.Key]bool{keys.Int64Key(int64(n)): true})
			returned <- struct{}{}
		}()
	}
	for range calls - 1 {
		select {
		case <-returned:
		case <-time.After(5 * time.Minute):
			t.Fatal("calls wait for one that is under way")
		}
	}
	<-x.packing
	<-returned
	if x.ended != nil {
		t.Error("blocks are left, and no call for them")
	}
}

// unclosable is an engine whose Close fails.
type unclosable struct{ transfer.Engine }

var errUnclosable = errors.New("it does not close")

func (unclosable) Close() error { return errUnclosable }
