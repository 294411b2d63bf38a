package pagesoak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// keeper stores keys on a rank with enough pages for all, of which none may be lost. It
// tests the service alone and transfers no bytes.
type keeper struct {
	protocol protocol
	kept     [ranks]map[string]int64
	owner    [ranks]map[int64]string
}

// keeperPages is more than it ever uses.
const keeperPages = 1 << 20

func newKeeper(p protocol) *keeper {
	k := &keeper{protocol: p}
	for rank := range ranks {
		k.kept[rank], k.owner[rank] = map[string]int64{}, map[int64]string{}
	}
	return k
}

// run stores keys and checks some, until the context ends.
func (k *keeper) run(ctx context.Context) error {
	for n := 0; ctx.Err() == nil; n++ {
		keys := make([]string, batchPages)
		for i := range keys {
			keys[i] = fmt.Sprintf("%032x", n*batchPages+i)
		}
		// What was acknowledged counts, also if the test ends meanwhile.
		if err := k.store(context.WithoutCancel(ctx), keys); err != nil && !errors.Is(err, errGaveUp) {
			return err
		}
		if err := k.check(context.WithoutCancel(ctx), 64); err != nil && !errors.Is(err, errGaveUp) {
			return err
		}
		pause(ctx, 50*time.Millisecond)
	}
	return nil
}

// store stores keys on all ranks, and records those that were confirmed on all.
func (k *keeper) store(ctx context.Context, keys []string) error {
	var pages [ranks][]int64
	for rank := range ranks {
		var err error
		if pages[rank], _, err = k.protocol.allocate(ctx, rank, keys); err != nil {
			return err
		}
		var written []placed
		for i, page := range pages[rank] {
			if page == none {
				return fmt.Errorf("no page for %s on rank %d, which has free pages", keys[i], rank)
			}
			if other, owned := k.owner[rank][page]; owned {
				return fmt.Errorf("page %d of rank %d was given to %s, and belongs to %s", page, rank, keys[i], other)
			}
			written = append(written, placed{keys[i], page})
		}
		if err := k.protocol.confirm(ctx, rank, written, nil); err != nil {
			return err
		}
		for _, w := range written {
			k.owner[rank][w.page] = w.key
		}
	}
	for rank := range ranks {
		for i, key := range keys {
			k.kept[rank][key] = pages[rank][i]
		}
	}
	return nil
}

// check checks that some keys exist, each on its page; n = 0 means all keys.
func (k *keeper) check(ctx context.Context, n int) error {
	var all []string
	for key := range k.kept[0] { // in no order
		if n > 0 && len(all) == n {
			break
		}
		all = append(all, key)
	}
	for keys := range slices.Chunk(all, 512) {
		there, err := k.protocol.exists(ctx, 0, keys)
		if err != nil {
			return err
		}
		if i := slices.Index(there, false); i >= 0 {
			return fmt.Errorf("%s was confirmed and does not exist", keys[i])
		}
		for rank := range ranks {
			pages, _, err := k.protocol.locate(ctx, rank, keys)
			if err != nil {
				return err
			}
			for i, page := range pages {
				if want := k.kept[rank][keys[i]]; page != want {
					return fmt.Errorf("%s is on page %d of rank %d, but was confirmed on %d", keys[i], page, rank, want)
				}
			}
		}
	}
	return nil
}
