package index

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// Writers, readers and an operator use far too few pages at once: no reader sees another
// key's bytes, and at the end the counts add up. The test finds most with -race.
func TestManyAtOnce(t *testing.T) {
	const ranks, numPages, keys = 2, 64, 300
	o := pageservice.Options{
		Lease: 200 * time.Millisecond, Hold: 50 * time.Millisecond,
		Reserve: 400 * time.Millisecond, Quarantine: 20 * time.Millisecond,
	}
	b, err := openWith(t.TempDir(), journal.Options{SlackBytes: 1 << 16}, Options{Options: o, searchBound: 4})
	if err != nil {
		t.Fatal(err)
	}
	for rank := range ranks {
		if _, err := b.Initialize(ctx, modelSpace, rank, pageservice.RankOptions{NumPages: numPages}); err != nil {
			t.Fatal(err)
		}
	}
	var files [ranks][numPages]atomic.Pointer[string]
	var read, saved atomic.Int64
	ends := time.Now().Add(2 * time.Second)

	batch := func() []string {
		from := rand.IntN(keys)
		some := make([]string, 1+rand.IntN(8))
		for i := range some {
			some[i] = fmt.Sprint((from + i) % keys)
		}
		return some
	}
	write := func() error {
		some := batch()
		for rank := range ranks {
			begin := time.Now()
			grants, err := b.Reserve(ctx, modelSpace, rank, some, rand.IntN(2) == 0)
			if err != nil {
				return err
			}
			var written []pageservice.Placed
			for i, g := range grants {
				if g.Page == pageservice.None || time.Since(begin) > o.Reserve {
					continue
				}
				files[rank][g.Page].Store(&some[i])
				written = append(written, pageservice.Placed{Key: some[i], Page: g.Page})
			}
			c, err := b.Confirm(ctx, modelSpace, rank, written, nil)
			if err != nil {
				return err
			}
			saved.Add(int64(c.Keys))
		}
		return nil
	}
	query := func() error {
		some := batch()
		rank := rand.IntN(ranks)
		if _, err := b.Exists(ctx, modelSpace, some); err != nil {
			return err
		}
		begin := time.Now()
		found, err := b.Locate(ctx, modelSpace, rank, some)
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
		for i, page := range found {
			if page == pageservice.None {
				continue
			}
			got := *files[rank][page].Load()
			if time.Since(begin) < o.Lease && got != some[i] {
				return fmt.Errorf("rank %d page %d: read %q, want %q", rank, page, got, some[i])
			}
			read.Add(1)
		}
		return nil
	}
	operate := func() (err error) {
		switch rand.IntN(20) {
		case 0:
			err = b.Clear(ctx, modelSpace)
		case 1:
			_, err = b.Delete(ctx, modelSpace, batch())
		case 2:
			_, err = b.Evict(ctx, modelSpace, 3)
		case 3:
			_, err = b.List(ctx, modelSpace, "", 10)
		default:
			_, err = b.Stat(ctx)
		}
		time.Sleep(5 * time.Millisecond)
		return err
	}
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for time.Now().Before(ends) {
				f := []func() error{write, query, query, operate}[i%4]
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if read.Load() == 0 || saved.Load() == 0 {
		t.Errorf("%d read, %d saved", read.Load(), saved.Load())
	}
	if err := b.Check(); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("%d pages read, %d saved", read.Load(), saved.Load())
}
