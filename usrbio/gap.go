package usrbio

import (
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// gap follows a ring whose mount has ended. A kv3fs that was restarted goes on with the rings of the one before it, although
// their descriptors of the mount stay useless. Such a daemon copies a number from one word of the ring to another, and
// a third says how long its client should wait for it. Where nothing does, that word is 0.
type gap struct {
	ping  int32
	since time.Time // when the number was changed that has not been copied; zero: it has been
}

// mostGap bounds what a daemon can make us wait.
const mostGap = time.Hour

// isServed reports whether the ring is served, or may yet be. It is called now and then, while nothing is to be
// collected, inside shm.Guard.
func (g *gap) isServed(mem *shm.Mapping, layout wire.Layout, now time.Time) bool {
	wait := min(time.Duration(mem.LoadInt32(layout.GapOff()))*time.Second, mostGap)
	if wait <= 0 {
		return false
	}
	if !g.since.IsZero() && mem.LoadInt32(layout.PongOff()) != g.ping {
		return now.Sub(g.since) < wait
	}
	g.ping = mem.LoadInt32(layout.PongOff()) + 1 // another process may have the ring, too
	g.since = now
	mem.StoreInt32(layout.PingOff(), g.ping)
	return true
}
