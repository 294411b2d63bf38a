package tier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// unsent is the blocks that are near and are to be sent to the far store.
type unsent struct {
	most int

	mu      sync.Mutex
	queue   []*parcel // also some that have left
	all     map[kv.Key]*parcel
	changed chan struct{} // closed and replaced when anything here changes
	gone    int           // parcels that have left, ever
	flushes int           // calls of Flush that wait: all that waits is tried once, without a pause
	ended   bool          // by Close
	failed  int           // blocks that were given up, since the last report
	why     error         // of the first of these
	told    time.Time     // when the log last had one
	untold  error         // that the log is to have now, see unlockUnsent

	// While the far store fails, one parcel at a time is tried.
	failing  error // of the last attempt, if that has sent nothing
	trying   int   // attempts that are under way
	lastTime time.Time
	pause    time.Duration // after lastTime
}

// parcel is a block that is to be sent.
type parcel struct {
	key     kv.Key
	sending bool          // a sender has it
	again   bool          // what that sender finds may be older than the last save: it is to look again
	deleted bool          // the sender that has it is to try no more
	unsure  bool          // it may not have been near, or a Delete of it has failed: if it is not near, that is no loss
	left    bool          // it is sent, or given up
	fails   int           // attempts that have failed
	err     error         // of the last of these
	after   time.Time     // it is not tried before
	done    chan struct{} // closed when it has left
}

func newUnsent(most int) *unsent {
	return &unsent{most: most, all: map[kv.Key]*parcel{}, changed: make(chan struct{})}
}

func (u *unsent) len() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return int64(len(u.all))
}

// change wakes all that wait. The lock is held.
func (u *unsent) change() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// put queues a block that is not queued. The lock is held.
func (u *unsent) put(p *parcel) {
	p.done = make(chan struct{})
	u.all[p.key] = p
	u.queue = append(u.queue, p)
	u.change()
}

// putBack queues a block of which a Delete has failed, if it is not there by now.
func (u *unsent) putBack(key kv.Key, unsure bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.has(key, unsure) {
		u.put(&parcel{key: key, unsure: unsure})
	}
}

// has reports whether a block is queued that was saved just now, or that may be near nevertheless. The lock is held.
func (u *unsent) has(key kv.Key, unsure bool) bool {
	p := u.all[key]
	if p == nil {
		return false
	}
	p.unsure = p.unsure && unsure
	p.again = p.sending
	return true
}

// compact removes what has left from the queue, once that is most of it. The lock is held.
func (u *unsent) compact() {
	if len(u.queue) <= 2*len(u.all)+64 {
		return
	}
	kept := make([]*parcel, 0, len(u.all))
	for _, p := range u.queue {
		if !p.left {
			kept = append(kept, p)
		}
	}
	u.queue = kept
}

// take returns parcels to send now, at most so many, and begins an attempt if there are any; else how long to wait
// for the next, below 0 if that needs a change. The lock is held.
func (u *unsent) take(most int) (some []*parcel, wait time.Duration) {
	wait = -1
	now := time.Now()
	waits := func(until time.Time) bool {
		left := until.Sub(now)
		if left <= 0 {
			return false
		}
		if wait < 0 || left < wait {
			wait = left
		}
		return true
	}
	alone := u.failing != nil && u.flushes == 0 && !u.ended
	if alone && u.trying > 0 {
		return nil, -1
	}
	if alone {
		most = 1
	}
	kept := u.queue[:0]
	for i, p := range u.queue {
		if len(some) == most {
			kept = append(kept, u.queue[i:]...)
			break
		}
		switch {
		case p.left: // deleted
			continue
		case waits(p.after):
		case alone && p.fails == 0 && waits(u.lastTime.Add(retryAfter)): // it may be that only others are refused
		case alone && p.fails > 0 && waits(u.lastTime.Add(u.pause)):
		default:
			p.sending, p.again = true, false
			some = append(some, p)
			continue
		}
		kept = append(kept, p)
	}
	clear(u.queue[len(kept):])
	if u.queue = kept; len(some) > 0 {
		u.trying++
	}
	return some, wait
}

// tried ends an attempt, which has sent some or has failed. Neither is an attempt that has met nothing to send.
// The pause grows with failures that follow each other, not with those of attempts at once.
func (u *unsent) tried(began time.Time, sent bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.trying--
	switch {
	case sent:
		u.failing, u.pause = nil, 0
	case err != nil:
		if u.failing == nil || began.After(u.lastTime) {
			u.pause = longer(u.pause)
		}
		u.failing, u.lastTime = err, time.Now()
	}
	u.change()
}

// longer returns the pause that follows one.
func longer(pause time.Duration) time.Duration { return min(max(2*pause, retryAfter), retryMost) }

// hurry has all that waits tried at once. The lock is held.
func (u *unsent) hurry() {
	for _, p := range u.all {
		p.after = time.Time{}
	}
	u.change()
}

// leave removes a parcel. The lock is held.
func (u *unsent) leave(p *parcel) {
	if p.left {
		return
	}
	p.left = true
	if u.all[p.key] == p {
		delete(u.all, p.key)
	}
	u.gone++
	close(p.done)
	u.change()
}

// end removes a parcel that a sender is done with, and reports true, unless it is to look again. The lock is held.
func (u *unsent) end(p *parcel) bool {
	if p.again && !p.left && !p.deleted {
		p.sending = false
		u.queue = append(u.queue, p)
		u.change()
		return false
	}
	u.leave(p)
	return true
}

// errSlow means that the queue was full.
var errSlow = errors.New("kvstore: too many blocks wait for the far store")

// patience is how long a batch has waited for a place in the queue.
type patience struct {
	gone  int // parcels that had left
	since time.Time
}

// left returns how much of the timeout is left: it begins anew whenever parcels have left.
func (p *patience) left(gone int, timeout time.Duration) time.Duration {
	if p.since.IsZero() || gone != p.gone {
		p.gone, p.since = gone, time.Now()
	}
	return timeout - time.Since(p.since)
}

// send queues a block, unsure if it may not be near. It waits for a place while the far store takes others; otherwise the
// block stays near alone, which Flush says.
func (s *Store) send(d *saving, key kv.Key, unsure bool) {
	u := s.unsent
	for {
		healthy, why := s.health.change(), s.health.err()
		if s.put(d, key, unsure) {
			return
		}
		u.mu.Lock()
		if len(u.all) < u.most { // by now
			u.mu.Unlock()
			continue
		}
		if why == nil && u.pause > retryAfter { // one failure may have been the only one
			why = u.failing
		}
		left, changed := d.patience.left(u.gone, s.o.Timeout), u.changed
		u.mu.Unlock()
		if why != nil || left <= 0 || d.Ended() != nil {
			s.lose(errors.Join(errSlow, why))
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-healthy:
		case <-d.Context().Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// put queues a block that a save has brought near, if there is room. A Delete that ran meanwhile may have removed it, which is no loss.
func (s *Store) put(d *saving, key kv.Key, unsure bool) bool {
	s.mu.Lock() // a Delete begins before this, or finds what is queued
	defer s.mu.Unlock()
	unsure = unsure || d.deleted[key] || s.deleting[key] > 0
	u := s.unsent
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.has(key, unsure) {
		return true
	}
	if len(u.all) >= u.most {
		return false
	}
	u.put(&parcel{key: key, unsure: unsure})
	return true
}

// sendLater queues a block whose save has failed, and which is near nevertheless. The caller of one part of it may know of no
// failure of one part, so one that finds no place counts as lost, unless a Delete of it ran meanwhile.
func (s *Store) sendLater(d *saving, key kv.Key) {
	u := s.unsent
	s.mu.Lock() // as in put
	u.mu.Lock()
	switch {
	case u.has(key, true):
	case len(u.all) < u.most:
		u.put(&parcel{key: key, unsure: true})
	case !d.deleted[key] && s.deleting[key] == 0:
		s.loseLocked(errors.Join(errSlow, u.failing))
	}
	s.mu.Unlock()
	s.unlockUnsent()
}

// lose counts a block that does not get far.
func (s *Store) lose(err error) {
	s.unsent.mu.Lock()
	s.loseLocked(err)
	s.unlockUnsent()
}

// loseLocked is lose for who has the lock, which unlockUnsent releases.
func (s *Store) loseLocked(err error) {
	u := s.unsent
	s.count.DroppedBlocks.Add(1)
	if u.failed++; u.why == nil {
		u.why = err
	}
	if now := time.Now(); now.Sub(u.told) > time.Minute {
		u.told, u.untold = now, err
	}
}

// unlockUnsent releases the lock, and then has the log say what was lost: who reads the log may be slow, and must hold up
// nobody who needs the lock.
func (s *Store) unlockUnsent() {
	u := s.unsent
	why := u.untold
	u.untold = nil
	u.mu.Unlock()
	if why != nil {
		s.o.Logger.Warn("blocks do not get from near to far", "near", s.nearName, "far", s.farName, "dropped since the start", s.count.DroppedBlocks.Load(), "err", why)
	}
}

// report says how many blocks were given up since the last report.
func (s *Store) report() error {
	u := s.unsent
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failed == 0 {
		return nil
	}
	err := fmt.Errorf("kvstore: %d blocks did not get from %s to %s; of the first: %w", u.failed, s.nearName, s.farName, u.why)
	u.failed, u.why = 0, nil
	return err
}

// flushUnsent waits until what is queued now has left, or an attempt from now on has failed. What has
// failed stays in the queue.
func (s *Store) flushUnsent(ctx context.Context) error {
	u := s.unsent
	type waiting struct {
		p     *parcel
		fails int
	}
	var all []waiting
	u.mu.Lock()
	u.flushes++
	u.hurry()
	for _, p := range u.all {
		w := waiting{p, p.fails}
		if p.sending { // an attempt that began before
			w.fails++
		}
		all = append(all, w)
	}
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.flushes--
	}()
	timer := time.NewTimer(s.o.Timeout)
	defer timer.Stop()
	failed := 0
	var why error
	for before := len(all); ; {
		away := s.health.change()
		u.mu.Lock()
		left := all[:0]
		for _, w := range all {
			switch {
			case w.p.left:
			case w.p.fails > w.fails:
				if failed++; why == nil {
					why = w.p.err
				}
			default:
				if !w.p.sending && !w.p.after.IsZero() { // it has failed in an attempt that began before
					w.p.after = time.Time{}
					u.change()
				}
				left = append(left, w)
			}
		}
		all = left
		changed := u.changed
		u.mu.Unlock()
		if len(all) == 0 {
			break
		}
		if len(all) < before {
			before = len(all)
			timer.Reset(s.o.Timeout)
		}
		if err := s.health.err(); err != nil {
			failed, why = failed+len(all), err
			break
		}
		select {
		case <-changed:
			continue
		case <-away:
			continue
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			failed, why = failed+len(all), fmt.Errorf("none got there for %v: %w", s.o.Timeout, kv.ErrTimeout)
		}
		break
	}
	if failed > 0 {
		return errors.Join(s.report(), fmt.Errorf("kvstore: %d blocks of %s are not in %s yet, and are tried again; of the first: %w", failed, s.nearName, s.farName, why))
	}
	return s.report()
}

// drain waits until everything is sent. It gives up what fails, and all when nothing has been
// sent for the timeout.
func (s *Store) drain() {
	u := s.unsent
	timer := time.NewTimer(s.o.Timeout)
	defer timer.Stop()
	u.mu.Lock()
	u.ended = true
	u.hurry()
	for before := len(u.all); len(u.all) > 0; {
		if len(u.all) < before {
			before = len(u.all)
			timer.Reset(s.o.Timeout)
		}
		changed := u.changed
		u.mu.Unlock()
		select {
		case <-changed:
			u.mu.Lock()
			continue
		case <-timer.C:
		}
		u.mu.Lock()
		for _, p := range u.all {
			s.loseLocked(kv.ErrTimeout)
			u.leave(p)
		}
	}
	s.unlockUnsent()
}
