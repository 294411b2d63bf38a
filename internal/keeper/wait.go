package keeper

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// waiter is a reservation that found no room.
type waiter struct {
	key      FileKey
	moves    bool // it is a move, for which others in the mount may wait: it waits for files to go, and for nothing else
	claim    func(overtake bool) (refused *inventory.Directory)
	deadline time.Time
	since    time.Time
	at       *inventory.Directory // whose queue it is in; nil once done. Guarded by Keeper.waitMu
	done     chan error           // of one element
}

// Reserve waits until there is room for n more bytes of a file or directory, in the order
// of arrival at the limit that is in the way, and ends with Settle if it returns nil. ENOSPC,
// or EDQUOT at a quota: nothing more can go before the deadline, or it is over, or n is more
// than the limit. EAGAIN: the deadline is zero, and there is no room now. EINTR: cancel,
// which may be nil, was closed.
func (k *Keeper) Reserve(key FileKey, n int64, deadline time.Time, cancel <-chan struct{}) error {
	if n < 0 {
		return unix.EINVAL
	}
	w := &waiter{key: key, claim: func(overtake bool) *inventory.Directory { return k.inv.Claim(key, n, overtake) }}
	err := k.room(w, func() int64 { return n }, deadline, cancel)
	if err == nil {
		k.pressed(key)
	}
	return err
}

// Move waits until there is room for a file or directory, and all below it, in the directory to, where it is about to get the
// place newName, instead of replaced if that is not the zero key. Only the limits count that are not above its place of
// now. It returns what ends the claim, once Renamed or Created were told. Errors are those of Reserve.
func (k *Keeper) Move(key, to FileKey, newName string, replaced FileKey, deadline time.Time, cancel <-chan struct{}) (end func(), err error) {
	var in *inventory.Incoming
	w := &waiter{key: key, moves: true, claim: func(overtake bool) (refused *inventory.Directory) {
		in, refused = k.inv.ClaimMove(key, to, replaced, overtake)
		return refused
	}}
	if err := k.room(w, func() int64 { return in.Bytes }, deadline, cancel); err != nil {
		return nil, err
	}
	moved := k.quotasMove(key, to, newName)
	return func() {
		in.Release()
		moved()
		k.pressed(to)
		k.changed()
	}, nil
}

// room waits for room as Reserve does. need is called after a claim.
func (k *Keeper) room(w *waiter, need func() int64, deadline time.Time, cancel <-chan struct{}) error {
	refused := w.claim(false)
	if refused == nil {
		return nil
	}
	k.kickNow()
	switch {
	case deadline.IsZero():
		return unix.EAGAIN
	case need() > refused.Limit()-refused.ForEntries():
		k.refused.Add(1)
		return k.full(refused)
	}
	w.deadline, w.since, w.done = deadline, time.Now(), make(chan error, 1)
	if err := k.enqueue(w); err != nil {
		k.refused.Add(1)
		return err
	}
	k.waited.Add(1)
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	over := unix.EINTR
	select {
	case err := <-w.done:
		return k.count(err)
	case <-timer.C:
		over = k.full(refused)
	case <-cancel:
	}
	if k.leave(w) {
		k.wake() // the next one may fit
		return k.count(over)
	}
	return k.count(<-w.done) // it was decided at the same time
}

func (k *Keeper) count(err error) error {
	if err == unix.ENOSPC || err == unix.EDQUOT {
		k.refused.Add(1)
	}
	return err
}

// full returns the error of a limit that has no room.
func (k *Keeper) full(d *inventory.Directory) unix.Errno {
	if d == k.inv.Root() {
		return unix.ENOSPC
	}
	return unix.EDQUOT
}

// enqueue has w wait, unless there is room by now.
func (k *Keeper) enqueue(w *waiter) error {
	k.waitMu.Lock()
	defer k.waitMu.Unlock()
	if k.ended {
		return unix.ENOSPC
	}
	refused := w.claim(false)
	if refused == nil {
		w.done <- nil
		return nil
	}
	k.joinLocked(w, refused)
	return nil
}

func (k *Keeper) joinLocked(w *waiter, d *inventory.Directory) {
	w.at = d
	k.queues[d] = append(k.queues[d], w)
	d.Queue(+1)
	k.waiting.Add(1)
	// Whoever made room before this saw no waiter.
	k.kickNow()
}

// leaveLocked takes a waiter out of its queue.
func (k *Keeper) leaveLocked(w *waiter) {
	d := w.at
	i := slices.Index(k.queues[d], w)
	invariants.Check(i >= 0, "a waiter is not in its queue")
	if k.queues[d] = slices.Delete(k.queues[d], i, i+1); len(k.queues[d]) == 0 {
		delete(k.queues, d)
	}
	d.Queue(-1)
	k.waiting.Add(-1)
	w.at = nil
}

// leave takes a waiter out of its queue, if it is still in one.
func (k *Keeper) leave(w *waiter) bool {
	k.waitMu.Lock()
	defer k.waitMu.Unlock()
	if w.at == nil {
		return false
	}
	k.leaveLocked(w)
	return true
}

// changed gives room that an event may have made to those who wait.
func (k *Keeper) changed() {
	if k.waiting.Load() > 0 {
		k.wake()
		k.kickNow()
	}
}

// wake gives room to those who wait, in each queue in order.
func (k *Keeper) wake() {
	k.waitMu.Lock()
	defer k.waitMu.Unlock()
	for again := true; again; {
		again = false
		for d, queue := range k.queues {
			w := queue[0]
			refused := w.claim(true)
			switch {
			case refused == nil:
				k.leaveLocked(w)
				w.done <- nil
				again = true
			case refused != d:
				k.leaveLocked(w) // it is another limit's turn
				k.joinLocked(w, refused)
			}
		}
	}
}

// busyPatience is how long a writer waits for files that are in use: those who read them have
// them open for a moment, or for as long as they run.
const busyPatience = 2 * time.Second

// failWaiters ends the waiting at a limit, from which no more files may go now, of those whose deadline
// is over before one may. While others write there, what they do not use of their
// reservations makes room. Moves end in any case.
func (k *Keeper) failWaiters(d *inventory.Directory, out *outcome) {
	after := out.young
	k.waitMu.Lock()
	defer k.waitMu.Unlock()
	reserved := d.Claimed()-d.Bytes()-d.Believed() > 0
	for _, w := range slices.Clone(k.queues[d]) {
		if !w.moves && (reserved || k.mayHope(w, out)) {
			continue
		}
		k.leaveLocked(w)
		if w.claim(true) == nil {
			w.done <- nil
			return // what it has set aside may make room for the others
		}
		k.complain("full", "a write failed, since there is no room and no file may go: what is left is in use, pinned, younger than its grace period, or of no layout that can be removed",
			"directory", k.pathOf(d), "bytes", d.Bytes(), "limit", d.Limit(), "next file may go in", after.Round(time.Second))
		w.done <- k.full(d)
	}
}

// mayHope reports whether files that may not go now may make room for a waiter in time.
func (k *Keeper) mayHope(w *waiter, out *outcome) bool {
	return out.young > 0 && !w.deadline.Before(time.Now().Add(out.young)) || out.busy && time.Since(w.since) < k.busyPatience
}

// EndWaiting ends all waiting, now and later: who finds no room gets ENOSPC, or EDQUOT.
func (k *Keeper) EndWaiting() {
	k.waitMu.Lock()
	defer k.waitMu.Unlock()
	k.ended = true
	for d, queue := range k.queues {
		for _, w := range slices.Clone(queue) {
			k.leaveLocked(w)
			w.done <- k.full(d)
		}
	}
}

// waitersAt returns the files and directories for which somebody waits at a limit.
func (k *Keeper) waitersAt(d *inventory.Directory) map[FileKey]bool {
	k.waitMu.Lock()
	defer k.waitMu.Unlock()
	all := make(map[FileKey]bool, len(k.queues[d]))
	for _, w := range k.queues[d] {
		all[w.key] = true
	}
	return all
}

func (k *Keeper) queued(d *inventory.Directory) bool {
	k.waitMu.Lock()
	defer k.waitMu.Unlock()
	return len(k.queues[d]) > 0
}

// pressed has Run make room once a limit above the file is above its high watermark.
func (k *Keeper) pressed(key FileKey) {
	if !k.high.Load() && k.inv.Pressed(key, k.limits().HighPercent/100) && !k.high.Swap(true) {
		k.kickNow()
	}
}
