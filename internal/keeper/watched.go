package keeper

import (
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// Hosts whose clocks differ write to a directory that others serve, and some clients stamp files themselves: an mtime an
// hour ago may be a minute old. So what its writer may still be at work on is taken for left behind only once this host
// has looked at it, and looked again, and found it unchanged for long enough by its own clock.

// mostWatched bounds watched.all: 64 bytes each. What finds no place is left alone until others have gone.
const mostWatched = 1 << 16

// sight is how a file was found, since when and until when.
type sight struct {
	size, mtimeNs int64
	since, last   time.Duration
}

type watched struct {
	mu     sync.Mutex
	now    func() time.Duration // a monotonic clock
	forget time.Duration        // what nobody has looked at for so long is gone
	all    map[FileKey]sight
	swept  time.Duration
}

func newWatched(now func() time.Duration, forget time.Duration) *watched {
	return &watched{now: now, forget: forget, all: map[FileKey]sight{}}
}

// unchanged returns for how long looks have found a file as it is now; 0: this is the first.
func (w *watched) unchanged(i *inventory.Info) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	s, ok := w.all[i.Key]
	if !ok && !w.hasPlaceLocked(now) {
		return 0
	}
	if !ok || s.size != i.SizeBytes || s.mtimeNs != i.MtimeNs {
		s = sight{size: i.SizeBytes, mtimeNs: i.MtimeNs, since: now}
	}
	s.last = now
	w.all[i.Key] = s
	return now - s.since
}

func (w *watched) hasPlaceLocked(now time.Duration) bool {
	const sweepEvery = time.Minute // a sweep looks at all
	if len(w.all) >= mostWatched && (w.swept == 0 || now-w.swept >= sweepEvery) {
		w.swept = now
		for k, s := range w.all {
			if now-s.last > w.forget {
				delete(w.all, k)
			}
		}
	}
	return len(w.all) < mostWatched
}

// gone says that a file was removed.
func (w *watched) gone(k FileKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, k)
}

// onceGrace is how long ago the last change of an unfinished file must be for a Pass to take it for left behind, as it
// looks once and has nothing but mtimes: clocks do not differ by that.
const onceGrace = 24 * time.Hour

// atWork reports whether the writer of an unfinished file may still be at work on it, on a host whose clock differs.
func (k *Keeper) atWork(i *inventory.Info, grace time.Duration, out *outcome) bool {
	if k.Silent == nil {
		return false
	}
	if k.once {
		left, young := k.wall.young(time.Unix(0, i.MtimeNs), max(grace, onceGrace))
		if young {
			out.later(left)
		}
		return young
	}
	if left := grace - k.watched.unchanged(i); left > 0 {
		out.later(left)
		return true
	}
	return false
}
