package files_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Two processes save the same blocks, with different bytes. Whoever saves a block first has
// saved it: who is loading it layer by layer gets nothing of the other.
func TestTheFirstOfTwoProcessesWins(t *testing.T) {
	const blocks = 300
	l := kv.Layout{BlockBytes: 4 * 1024, ShardBytes: 1024}
	dir := t.TempDir()
	open := func() *files.Store {
		s, err := files.Open(files.Options{Dirs: []string{dir}, Layout: l, Streams: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	shards := func(n int, fill byte) []kv.Shard {
		all := make([]kv.Shard, l.Shards())
		for i := range all {
			all[i] = kv.Shard{Key: kv.Key{byte(n), byte(n >> 8)}, Index: i, Buf: bytes.Repeat([]byte{fill}, int(l.ShardBytes))}
		}
		return all
	}
	// load returns the writer of a block.
	load := func(s *files.Store, n int) byte {
		t.Helper()
		all := shards(n, 0)
		task, err := s.Load(t.Context(), all)
		if err == nil {
			err = task.Wait(t.Context())
		}
		if err != nil {
			t.Errorf("block %d: %v", n, err)
		}
		for _, s := range all {
			if s.Buf[0] != all[0].Buf[0] {
				t.Errorf("block %d is of writers %d and %d", n, all[0].Buf[0], s.Buf[0])
			}
		}
		return all[0].Buf[0]
	}
	first := make([]byte, blocks)
	writers := []*files.Store{open(), open()}
	for n := range blocks {
		var both sync.WaitGroup
		var once sync.Once
		for w, s := range writers {
			both.Go(func() {
				task, err := s.Save(t.Context(), shards(n, byte(w+1)))
				if err == nil {
					err = task.Wait(t.Context())
				}
				if err != nil {
					t.Errorf("block %d: %v", n, err)
					return
				}
				once.Do(func() { first[n] = load(s, n) })
			})
		}
		both.Wait()
	}
	reader := open()
	changed := 0
	for n := range blocks {
		if load(reader, n) != first[n] {
			changed++
		}
	}
	if changed > 0 {
		t.Errorf("of %d blocks, %d are not any more what was loaded first", blocks, changed)
	}
}
