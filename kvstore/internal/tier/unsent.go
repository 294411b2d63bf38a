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
	queue   []*parcel
	all     map[kv.Key]*parcel
	changed chan struct{} // closed and replaced when anything here changes
	gone    int           // parcels that have left, ever
	hurry   int           // calls of Flush, ever: what failed is tried again at once
	ended   bool          // by Close
	failed  int           // blocks that were given up, since the last report
	why     error         // of the first of these
}

// parcel is a block that is to be sent.
type parcel struct {
	key     kv.Key
	sending bool          // a sender has it
	deleted bool          // the sender that has it is to try no more
	left    bool          // it is sent, or given up
	fails   int           // attempts that have failed
	err     error         // of the last of these
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

// errSlow means that the queue was full.
var errSlow = errors.New("kvstore: too many blocks wait for the far store")

// send queues a block. It waits for a place while the far store takes others; otherwise the
// block stays near alone, which Flush says.
func (s *Store) send(d *saving, key kv.Key) {
	u := s.unsent
	timer := time.NewTimer(s.o.Timeout)
	defer timer.Stop()
	for before := -1; ; {
		away := s.health.err()
		u.mu.Lock()
		if u.all[key] != nil {
			u.mu.Unlock()
			return
		}
		if len(u.all) < u.most {
			p := &parcel{key: key, done: make(chan struct{})}
			u.all[key] = p
			u.queue = append(u.queue, p)
			u.change()
			u.mu.Unlock()
			return
		}
		gone, changed := u.gone, u.changed
		u.mu.Unlock()
		if before >= 0 && gone != before {
			timer.Reset(s.o.Timeout)
		}
		before = gone
		if away != nil {
			s.lose(away)
			return
		}
		select {
		case <-changed:
		case <-s.health.change():
		case <-d.Context().Done():
			s.lose(errSlow)
			return
		case <-timer.C:
			s.lose(errSlow)
			return
		}
	}
}

// lose counts a block that does not get far.
func (s *Store) lose(err error) {
	s.unsent.mu.Lock()
	defer s.unsent.mu.Unlock()
	s.loseLocked(err)
}

func (s *Store) loseLocked(err error) {
	s.count.DroppedBlocks.Add(1)
	if s.unsent.failed++; s.unsent.why == nil {
		s.unsent.why = err
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
	u.hurry++
	u.change()
	for _, p := range u.all {
		w := waiting{p, p.fails}
		if p.sending { // an attempt that began before
			w.fails++
		}
		all = append(all, w)
	}
	u.mu.Unlock()
	timer := time.NewTimer(s.o.Timeout)
	defer timer.Stop()
	failed := 0
	var why error
	for before := len(all); ; {
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
		away := s.health.change()
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
	u.change()
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
	u.mu.Unlock()
}
