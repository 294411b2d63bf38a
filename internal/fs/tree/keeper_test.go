package tree

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/internal/test/usagemodel"
)

// What the keeper knows is what is on the disk, whatever is done to the files: while it scans
// a directory that was there before, and after a new start.
func TestKeeperAddsUp(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	dir := ""
	for round := range 3 {
		opts := keeper.Options{Dir: dir, StateDir: t.TempDir(), Skip: StateName, Rescan: -1, Log: slog.New(slog.DiscardHandler)}
		var tr *Tree
		if dir == "" {
			tr, dir = newTree(t, Options{})
			opts.Dir = dir
		}
		k, err := keeper.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		if tr == nil {
			if tr, err = Open(dir, Options{Usage: k}); err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- k.Run(ctx) }()
		w := &usageWorld{t: t, tr: tr, r: r, dirs: []uint64{RootID}}
		for range 700 {
			w.step()
		}
		w.closeAll()
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			// The tree sent no events: there was only what it left behind.
			k.Close()
			continue
		}
		inv := k.Inventory()
		if overlooked, err := inv.Look(context.Background()); err != nil || overlooked {
			t.Errorf("%v, overlooked: %v", err, overlooked)
		}
		if !inv.Scanned() {
			if err := inv.Scan(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		check := func(when string, own int64) {
			t.Helper()
			var want int64
			for key, blocks := range usagemodel.Taken(t, dir) {
				want += blocks * 512
				f, ok := inv.File(key)
				if _, isDir := inv.Directory(key); ok == isDir || ok && (max(f.Bytes-blocks*512, blocks*512-f.Bytes) > own || f.InUse) {
					t.Errorf("round %d, %s: %v takes %d bytes; the keeper has %+v, %v", round, when, key, blocks*512, f, isDir)
				}
			}
			if got, claimed := inv.Root().Bytes(), inv.Root().Claimed(); got != claimed || own == 0 && got != want {
				t.Errorf("round %d, %s: %d bytes and %d claimed by the keeper; %d on the disk", round, when, got, claimed, want)
			}
		}
		// What closeAll had written back, it used again, but in directories of earlier rounds.
		check("after events", ownBytes)
		if err := inv.Scan(context.Background()); err != nil {
			t.Fatal(err)
		}
		check("after a scan", 0)
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
