package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Clients of an index rely on what it promised them, also when the pages were moved to another index, which was perhaps told other times. So the note of
// whose index is in use says what its clients may rely on, and an index that pages were moved to keeps that. Until nobody relies on it any more, the note
// says that they were moved: every start before then, on whatever host, waits for all of it once more, since nobody compares clocks.

// relied returns what clients of the owner's index, and of those before it, may rely on. What a version that noted nothing has promised, nobody knows:
// likely the defaults.
func (o pagesOwner) relied() pageservice.Promises {
	if o.Promises == (pageservice.Promises{}) {
		return pageservice.Options{}.WithDefaults().Promises()
	}
	return o.Promises
}

// same reports whether two notes are of the same index.
func (o pagesOwner) same(is pagesOwner) bool {
	return o.Store == is.Store && o.Host == is.Host && o.Index == is.Index
}

// movedHandover is how long the host of an index that pages were moved from may go on answering.
const movedHandover = noteHolds + noteSpreads

// settled returns after how long nobody relies on what was promised before an index was opened with these options.
func settled(o pageservice.Options, promised pageservice.Promises, handover time.Duration) time.Duration {
	all := promised.And(o.WithDefaults().Promises())
	return max(all.Lease, all.Reserve) + all.Quarantine + all.LateWrites + handover
}

// settle notes that nobody relies any more on what was promised before, once that is so, unless ctx ends before. As long as it fails, the next start is
// more careful than it has to be.
func settle(ctx context.Context, after time.Duration, log *slog.Logger, note func(context.Context) error) {
	for pause(ctx, after); ctx.Err() == nil; pause(ctx, after) {
		err := note(ctx)
		if err == nil {
			return
		}
		log.Warn("cannot note that no client relies any more on what was promised before: the next start of the page service waits for that once more", "err", err)
	}
}
