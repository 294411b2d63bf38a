package ringserver

import (
	"context"
	"time"
)

const (
	// Pages of an iov that no request used for so long are dropped from the
	// daemon's page table (not from the client's memory), so that the daemon's
	// resident size does not grow with the iovs.
	forgetPagesAfter = 5 * time.Second
)

// expire answers requests that are past their deadline, until ctx ends.
func (s *Server) expire(ctx context.Context) {
	tick := time.NewTicker(max(s.opts.Deadline/20, time.Millisecond))
	defer tick.Stop()
	lastForget := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, p := range s.pollers {
				for _, r := range p.snapshot() {
					expired, work := r.tick(now, now.Add(-s.opts.Deadline))
					if work {
						p.wake()
					}
					if expired > 0 {
						s.log.Warn("requests timed out: the data directory's file system does not answer",
							"requests", expired, "deadline", s.opts.Deadline, "uid", r.cred.UID)
					}
				}
			}
			if now.Sub(lastForget) > forgetPagesAfter {
				lastForget = now
				s.forgetPages(now.Add(-forgetPagesAfter).Unix())
			}
		}
	}
}

// forgetPages drops page-table entries of iovs last used at or before the
// given unix second.
func (s *Server) forgetPages(before int64) {
	s.table.buffers.Range(func(_, v any) bool {
		buf := v.(*iov)
		if used := buf.lastUse.Load(); used != 0 && used <= before && buf.lastUse.CompareAndSwap(used, 0) {
			if w := buf.acquire(); w != nil {
				w.m.ForgetPages()
				w.release()
			}
		}
		return true
	})
}
