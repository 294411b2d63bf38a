package index

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// sharedLog is what hosts share of a log: groups of records that one appends and the others follow, and snapshots. It is
// cut short as package etcdlog does it: with snapshots of followers, or by compaction.
type sharedLog struct {
	groups    [][][]byte // from first on
	first     int        // index of the oldest group that is there
	whole     int        // who replays from here on knows everything; what comes before may be gone
	wholeAt   int        // the number of groups when whole was set: only then it is true
	snapshots []hostSnapshot
	hashes    map[int]uint64 // of the state, by the number of groups that were replayed
}

// hostSnapshot has the state after so many groups.
type hostSnapshot struct {
	groups int
	recs   [][]byte
}

func (l *sharedLog) len() int { return l.first + len(l.groups) }

// bare reports whether a host can begin without a snapshot.
func (l *sharedLog) bare() bool { return l.first <= l.whole }

// truncate drops what is in the older of two snapshots.
func (l *sharedLog) truncate() {
	if n := len(l.snapshots); n >= 2 {
		l.snapshots = l.snapshots[n-2:]
		if to := l.snapshots[0].groups; to > l.first {
			l.groups, l.first = l.groups[to-l.first:], to
		}
	}
}

// hostLog is the log as one host has it. It writes in the goroutine of a caller that waits for it, so a history can be repeated.
type hostLog struct {
	shared *sharedLog
	calls  chan func(pageservice.LogOwner) // during Start; once it is closed, the host leads
	owner  pageservice.LogOwner
	at     int  // how many groups were replayed
	loaded bool // something was replayed

	pending  []*pendingWrite
	demoted  bool
	before   func() error // called before a group is written
	compact  int          // how many of the oldest records are looked at when a group is written
	rewriter *rewriting
	appended func() // called by Append
}

type pendingWrite struct {
	done func(error)
	recs [][]byte
	over bool
	err  error
}

// rewriting is how far compaction has come.
type rewriting struct {
	recs [][]byte // of the snapshot, or of the group before next, that have not been looked at
	next int
}

func (l *hostLog) SizeBytes() int64 { return 0 }

func (l *hostLog) Start(owner pageservice.LogOwner) error {
	l.owner = owner
	for call := range l.calls {
		call(owner)
	}
	return owner.Replayed()
}

func (l *hostLog) Append(done func(error), recs ...[]byte) (wait func(context.Context) error) {
	w := &pendingWrite{done: done}
	for _, rec := range recs {
		w.recs = append(w.recs, slices.Clone(rec))
	}
	l.pending = append(l.pending, w)
	if l.appended != nil {
		l.appended()
	}
	return func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return err // the write goes on
		}
		for !w.over {
			l.flush()
		}
		return w.err
	}
}

func (l *hostLog) Close() error {
	l.demoted = true
	l.flush()
	return nil
}

// flush writes what is pending, as one group.
func (l *hostLog) flush() {
	writes := l.pending
	l.pending = nil
	if len(writes) == 0 {
		return
	}
	err := l.write(writes)
	for _, w := range writes {
		w.over, w.err = true, err
		w.done(err)
	}
}

func (l *hostLog) write(writes []*pendingWrite) error {
	if l.demoted {
		return pageservice.ErrDemoted
	}
	var group [][]byte
	if l.compact > 0 {
		group = l.rewrite(l.compact)
	} else {
		l.rewriter = nil
	}
	if l.before != nil {
		if err := l.before(); err != nil {
			l.rewriter = nil
			return err
		}
	}
	for _, w := range writes {
		group = append(group, w.recs...)
	}
	s := l.shared
	s.groups = append(s.groups, group)
	l.at = s.len()
	if r := l.rewriter; r != nil && len(r.recs) == 0 && r.next > s.whole {
		s.groups, s.first = s.groups[max(0, r.next-s.first):], max(s.first, r.next)
		s.whole, s.wholeAt = r.next, s.len()
	}
	return nil
}

// rewrite returns what the owner keeps of the next n records.
func (l *hostLog) rewrite(n int) (kept [][]byte) {
	s := l.shared
	if l.rewriter == nil {
		if s.bare() {
			l.rewriter = &rewriting{next: s.whole}
		} else {
			newest := s.snapshots[len(s.snapshots)-1]
			l.rewriter = &rewriting{recs: newest.recs, next: newest.groups}
		}
	}
	r := l.rewriter
	for ; n > 0; n-- {
		for len(r.recs) == 0 && r.next < s.len() {
			r.recs, r.next = s.groups[r.next-s.first], r.next+1
		}
		if len(r.recs) == 0 {
			break
		}
		kept = append(kept, l.owner.Keep(r.recs[0])...)
		r.recs = r.recs[1:]
	}
	return kept
}

// call has a host that follows do something.
func (l *hostLog) call(f func(pageservice.LogOwner) error) error {
	done := make(chan error)
	l.calls <- func(owner pageservice.LogOwner) { done <- f(owner) }
	return <-done
}

// follow replays up to n groups. Where the next one is gone, the host begins again.
func (l *hostLog) follow(rng *rand.Rand, n int) error {
	return l.call(func(owner pageservice.LogOwner) error {
		s := l.shared
		if !l.loaded || l.at < s.first {
			if err := l.load(rng, owner); err != nil {
				return err
			}
		}
		for ; n > 0 && l.at < s.len(); n-- {
			if err := replayRecords(owner, s.groups[l.at-s.first]); err != nil {
				return err
			}
			l.at++
			if err := l.compare(owner); err != nil {
				return err
			}
		}
		return nil
	})
}

func replayRecords(owner pageservice.LogOwner, recs [][]byte) error {
	for _, rec := range recs {
		if err := owner.Replay(rec); err != nil {
			return err
		}
	}
	return nil
}

// load begins with a snapshot or, where that is possible, without.
func (l *hostLog) load(rng *rand.Rand, owner pageservice.LogOwner) error {
	s := l.shared
	if l.loaded {
		owner.Reset()
	}
	l.loaded = true
	var usable []hostSnapshot
	for _, shot := range s.snapshots {
		if shot.groups >= s.first && shot.groups >= s.whole {
			usable = append(usable, shot)
		}
	}
	if n := len(usable); n > 0 && (!s.bare() || rng.IntN(2) == 0) {
		shot := usable[rng.IntN(n)]
		l.at = shot.groups
		if err := replayRecords(owner, shot.recs); err != nil {
			return err
		}
		return l.compare(owner)
	}
	if !s.bare() {
		return fmt.Errorf("the log begins with %d, is whole from %d on, and there are only %d snapshots", s.first, s.whole, len(s.snapshots))
	}
	l.at = s.whole
	if l.at < s.wholeAt { // not before that is it comparable
		for _, group := range s.groups[s.whole-s.first : s.wholeAt-s.first] {
			if err := replayRecords(owner, group); err != nil {
				return err
			}
		}
		l.at = s.wholeAt
	}
	return l.compare(owner)
}

// compare compares the state with that of any other host at the same place.
func (l *hostLog) compare(owner pageservice.LogOwner) error {
	if !owner.Whole() {
		return nil
	}
	hash := owner.StateHash()
	if other, ok := l.shared.hashes[l.at]; ok && other != hash {
		return fmt.Errorf("after %d groups the state is %x, and another host had %x", l.at, hash, other)
	}
	l.shared.hashes[l.at] = hash
	return nil
}

// snapshot takes a snapshot, if the host has everything.
func (l *hostLog) snapshot() error {
	return l.call(func(owner pageservice.LogOwner) error {
		all := l.shared.snapshots
		if !l.loaded || !owner.Whole() || len(all) > 0 && all[len(all)-1].groups >= l.at || l.at < l.shared.first {
			return nil
		}
		shot := hostSnapshot{groups: l.at}
		if err := owner.Snapshot(func(rec []byte) error { shot.recs = append(shot.recs, rec); return nil }); err != nil {
			return err
		}
		l.shared.snapshots = append(all, shot)
		return nil
	})
}
