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
func (d *Door) expire(ctx context.Context) {
	tick := time.NewTicker(max(d.opts.Deadline/20, time.Millisecond))
	defer tick.Stop()
	lastForget := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, l := range d.lanes {
				for _, r := range l.snapshot() {
					expired, work := r.lookAfter(now, now.Add(-d.opts.Deadline))
					if work {
						l.wake()
					}
					if expired > 0 {
						d.log.Warn("requests timed out: the data directory's file system does not answer",
							"requests", expired, "deadline", d.opts.Deadline, "uid", r.cred.UID)
					}
				}
			}
			if now.Sub(lastForget) > forgetPagesAfter {
				lastForget = now
				d.forgetPages(now.Add(-forgetPagesAfter).Unix())
			}
		}
	}
}

// forgetPages drops page-table entries of iovs last used at or before the
// given unix second.
func (d *Door) forgetPages(before int64) {
	d.table.buffers.Range(func(_, v any) bool {
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
