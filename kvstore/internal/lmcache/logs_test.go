package lmcache_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// The checksum log of a store with IDs is bounded by the blocks that are in the directory, though
// after each restart IDs knows none of those that were saved before, and other programs have
// removed most of them.
func TestLogsOfForgottenIDs(t *testing.T) {
	dir := t.TempDir()
	ns := keys.Namespace{Model: "a/b", BlockTokens: 16}
	o := objects(1, dir)
	o.Layout = kv.Layout{BlockBytes: 8 * kv.MaxShards, ShardBytes: 8} // large records
	o.Namespace, o.Checksums = ns.Fingerprint(), kv.ChecksumsRequire
	block := func(n int) (b keys.Block) {
		sum := sha256.Sum256(fmt.Append(nil, n))
		b.ID, _ = keys.DigestID(sum[:])
		b.Key = keys.NewIDs(ns, 1).Key(b.ID)
		return b
	}
	content := make([]byte, o.Layout.BlockBytes)
	logBytes := func() (size int64) {
		logs, err := filepath.Glob(filepath.Join(dir, ".kv3fs-sums-*", "*.log"))
		must(t, err)
		for _, path := range logs {
			info, err := os.Stat(path)
			must(t, err)
			size += info.Size()
		}
		return size
	}
	const (
		rounds  = 3
		gone    = 1200 // blocks of a round that are no longer there
		perGone = 64 + 8*kv.MaxShards
		grown   = 8 << 20 // from when on a log is compacted
	)
	next := rounds
	for round := range rounds {
		ids := keys.NewIDs(ns, 4)
		o.IDs = ids
		s := open(t, o)
		if before := logBytes(); before > grown {
			for deadline := time.Now().Add(30 * time.Second); logBytes() > before/2; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("round %d: the log has %d bytes and is not compacted", round, logBytes())
				}
			}
		}
		b := block(round)
		ids.Add(b)
		task, err := s.Save(t.Context(), o.Layout.ByBlock([]kv.Key{b.Key}, [][]byte{content}))
		must(t, err)
		must(t, task.Wait(t.Context()))
		must(t, s.Close())

		// Blocks that were saved and removed by others leave records.
		found, err := filepath.Glob(filepath.Join(dir, ".kv3fs-sums-*"))
		must(t, err)
		logs, err := sums.OpenIn(found[0], sums.Shape{Namespace: o.Namespace, BlockBytes: o.Layout.BlockBytes, Shards: o.Layout.Shards()})
		must(t, err)
		for range gone {
			must(t, logs.Record(block(next).Key, make([]uint64, kv.MaxShards)))
			next++
		}
		must(t, logs.Close())
		if size := logBytes(); size > grown+2*gone*perGone {
			t.Fatalf("round %d: the log has %d bytes", round, size)
		}
	}
	ids := keys.NewIDs(ns, 4)
	o.IDs = ids
	s := open(t, o)
	if n := len(list(t, s)); n != rounds {
		t.Errorf("%d blocks are listed", n)
	}
	for n := range rounds {
		b := block(n)
		ids.Add(b)
		buf := make([]byte, len(content))
		task, err := s.Load(t.Context(), o.Layout.ByBlock([]kv.Key{b.Key}, [][]byte{buf}))
		must(t, err)
		if err := task.Wait(t.Context()); err != nil {
			t.Errorf("block %d has lost its checksums: %v", n, err)
		}
	}
}
