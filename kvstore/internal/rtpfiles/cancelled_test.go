package rtpfiles

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Of an item whose save was cancelled no block exists, unless all its shards have succeeded.
func TestCancelledItem(t *testing.T) {
	s := openTest(t, "RtpLlm", Options{Root: t.TempDir(), PackBlocks: 4})
	took := time.Millisecond // by a save that nobody cancels
	for n := range 150 {
		blocks := prompt(4*n, 4)
		ctx, cancel := context.WithCancel(t.Context())
		buf := make([]byte, 4*testLayout.BlockBytes)
		var bufs [][]byte
		for i := range blocks {
			bufs = append(bufs, buf[int64(i)*testLayout.BlockBytes:][:testLayout.BlockBytes])
		}
		begun := time.Now()
		task, err := s.Save(ctx, testLayout.ByBlock(blocks, bufs))
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			time.AfterFunc(took*time.Duration(n%20)/10, cancel)
		}
		<-task.Done()
		cancel()
		if n == 0 {
			took = time.Since(begun)
		}
		found := make([]bool, len(blocks))
		if err := s.Lookup(t.Context(), blocks, found); err != nil {
			t.Fatal(err)
		}
		failed := map[kv.Key]bool{}
		for i, err := range task.All() {
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			failed[task.Shard(i).Key] = failed[task.Shard(i).Key] || err != nil
		}
		for i, key := range blocks {
			if found[i] == failed[key] {
				t.Fatalf("save %d: block %d is found: %v; a shard failed: %v", n, i, found[i], failed[key])
			}
		}
	}
}
