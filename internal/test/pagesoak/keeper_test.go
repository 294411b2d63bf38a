package pagesoak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// keeper stores keys where there is room for all, and none may be lost. It is
// about the service alone and moves no bytes.
type keeper struct {
	protocol protocol
	kept     [ranks]map[string]int64
	owner    [ranks]map[int64]string
}

// keeperPages are more than it ever uses.
const keeperPages = 1 << 20

func newKeeper(p protocol) *keeper {
	k := &keeper{protocol: p}
	for rank := range ranks {
		k.kept[rank], k.owner[rank] = map[string]int64{}, map[int64]string{}
	}
	return k
}

// run stores and looks until the context ends, and at all in the end.
func (k *keeper) run(ctx context.Context) error {
	for n := 0; ctx.Err() == nil; n++ {
		keys := make([]string, batchPages)
		for i := range keys {
			keys[i] = fmt.Sprintf("%032x", n*batchPages+i)
		}
		// What was answered counts, also when the test ends meanwhile.
		if err := k.store(context.WithoutCancel(ctx), keys); err != nil && !errors.Is(err, errGaveUp) {
			return err
		}
		if err := k.look(context.WithoutCancel(ctx), 64); err != nil && !errors.Is(err, errGaveUp) {
			return err
		}
		pause(ctx, 50*time.Millisecond)
	}
	return nil
}

// store keeps keys on all ranks, and notes what was confirmed on all.
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
				return fmt.Errorf("no page for %s on rank %d, where there is room", keys[i], rank)
			}
			if other, owned := k.owner[rank][page]; owned {
				return fmt.Errorf("page %d of rank %d is given to %s and is %s's", page, rank, keys[i], other)
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

// look insists on some of the keys, each on its page. 0: on all.
func (k *keeper) look(ctx context.Context, n int) error {
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
			return fmt.Errorf("%s was confirmed and is not there", keys[i])
		}
		for rank := range ranks {
			pages, _, err := k.protocol.locate(ctx, rank, keys)
			if err != nil {
				return err
			}
			for i, page := range pages {
				if want := k.kept[rank][keys[i]]; page != want {
					return fmt.Errorf("%s is on page %d of rank %d, and was confirmed on %d", keys[i], page, rank, want)
				}
			}
		}
	}
	return nil
}
