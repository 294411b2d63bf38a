package keeper

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/keeper/policy"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

const (
	// So many files are chosen at first, and then four times as many at each next time, since
	// each time reads all records, and lists the directories of those that were chosen.
	fewestFiles = 256
	mostFiles   = 8 << 10

	// A search for victims that found too few is not repeated for twice the time that it
	// took, within these bounds.
	retryAfter = 100 * time.Millisecond
	retryMost  = 5 * time.Second

	leastGrace = time.Minute
)

// rank says when a file's turn is. That it was written is its first use.
func (k *Keeper) rank(lastUse uint32, uses uint8) int64 {
	return int64(policy.MakeHeat(int64(lastUse)*msPerSecond, 0, int(uses)+1).Score(k.bonus()))
}

const msPerSecond = 1000

// bonus is what each use beyond the first is worth.
func (k *Keeper) bonus() time.Duration { return cmp.Or(k.UseBonus, k.learner.tuner.Bonus()) }

// outcome is what a search for victims came to.
type outcome struct {
	exhausted bool          // no file that may go is left
	busy      bool          // some are in use by others than those who wait, or have just been used
	late      bool          // it took too long, and is to go on after Run's other duties
	young     time.Duration // after which one of the others may go; 0: nobody knows
}

func (o *outcome) later(left time.Duration) {
	if o.young == 0 || left < o.young {
		o.young = left
	}
}

// makeRoom has files go until no limit is above its low watermark that was above its high one,
// and until those who wait have room, or can have none. It returns after how long to
// look again, 0: not before something happens.
func (k *Keeper) makeRoom(ctx context.Context) (next time.Duration) {
	k.high.Store(false)
	maps.DeleteFunc(k.tired, func(_ *inventory.Directory, until time.Time) bool { return time.Since(until) > 0 })
	again := func(d time.Duration) {
		if next == 0 || d < next {
			next = d
		}
	}
	for _, d := range k.limited() {
		limit := d.Limit()
		if limit == inventory.Unlimited {
			continue
		}
		high, low := part(limit, k.limits().HighPercent), part(limit, k.limits().LowPercent)
		if d.Believed() > 0 {
			// Most of it may be gone. Until the scan has seen it, only what is needed goes.
			high, low = math.MaxInt64, math.MaxInt64
		}
		if d.Claimed() <= high && !k.queued(d) && !k.late[d] {
			continue
		}
		if wait := time.Until(k.tired[d]); wait > 0 {
			again(wait)
			continue
		}
		began, before := time.Now(), k.evicted.Load()
		out := k.shrink(ctx, d, low)
		if out.exhausted && k.needsPageFiles(d, high, &out) {
			k.givePageFilesUp(ctx, d, func() bool { return d.Claimed() <= low && !k.queued(d) || ctx.Err() != nil })
			out.exhausted = d.Claimed() > low || k.queued(d)
		}
		if k.evicted.Load() > before {
			k.tellEvicted(d)
		}
		if delete(k.late, d); out.late {
			k.late[d] = true
			k.kickNow()
		}
		if !out.exhausted {
			continue
		}
		k.tired[d] = time.Now().Add(min(max(2*time.Since(began), retryAfter), retryMost))
		if out.young > 0 {
			again(max(out.young, retryAfter))
		}
		if k.queued(d) {
			again(retryAfter)
			if k.inv.Scanned() {
				k.failWaiters(d, &out)
			}
		}
		if d.Bytes() > limit {
			path := k.pathOf(d)
			k.complain("over "+path, "more is used than the limit, and nothing more may go: raise the limit, unpin, or remove files; page files go only if --pages-files names their directory (kv3fs du --by owner shows what they take)",
				"directory", path, "bytes", d.Bytes(), "limit", limit)
		}
	}
	return next
}

// tellEvicted logs once a minute at most what has gone.
func (k *Keeper) tellEvicted(d *inventory.Directory) {
	if _, now := k.pace.Log("evicted"); now {
		k.Log.Info("removed files to make room", "directory", k.pathOf(d), "files_since_the_start", k.evicted.Load(), "bytes_since_the_start", k.evictedBytes.Load(),
			"bytes left", d.Bytes(), "limit", d.Limit())
	}
}

// pathOf returns a directory's path below the data directory, for the log.
func (k *Keeper) pathOf(d *inventory.Directory) string {
	path, _ := k.inv.Path(d)
	return filepath.Clean(path) // "." for the data directory itself, and for one that is gone
}

func part(limit int64, percent float64) int64 { return int64(float64(limit) * percent / 100) }

// shrink has files below a directory go until no more than that is claimed there, and nobody
// waits for room, for a tick at most: those who write as fast as files go must not keep Run
// from its other duties.
func (k *Keeper) shrink(ctx context.Context, d *inventory.Directory, low int64) (out outcome) {
	end, before := time.Now().Add(tick), k.evicted.Load()
	enough := func() bool {
		out.late = time.Now().After(end) && k.evicted.Load() > before
		return out.late || d.Claimed() <= low && !k.queued(d) || ctx.Err() != nil
	}
	q := inventory.Query{Top: d, Most: fewestFiles, Unknown: k.EvictUnknown, Rank: k.rank}
	writing := k.waitersAt(d)
	q.Busy = func(key FileKey) { out.busy = out.busy || !writing[key] }
	for !enough() {
		batch := k.inv.Candidates(q)
		if len(batch) == 0 {
			out.exhausted = true
			return out
		}
		q.After = &batch[len(batch)-1]
		q.Most = min(4*len(batch), mostFiles)
		k.remove(batch, purge{unknown: k.EvictUnknown, enough: enough, count: &k.evicted}, &out)
	}
	return out
}

// purge says which files of a batch go, and until when.
type purge struct {
	unknown bool                   // also those of no layout
	broken  bool                   // also those whose service counts on them: they cannot be read
	only    func(path string) bool // nil: all
	enough  func() bool            // nil: never
	count   *atomic.Int64
}

// reap removes what unfinished writes have left behind.
func (k *Keeper) reap(ctx context.Context) {
	q := inventory.Query{Top: k.inv.Root(), Most: fewestFiles, Rank: k.rank}
	for ctx.Err() == nil {
		batch := k.inv.Candidates(q)
		temporary := batch
		if i := slices.IndexFunc(batch, func(c inventory.Candidate) bool { return c.Kind != inventory.Temporary }); i >= 0 {
			temporary = batch[:i]
		}
		k.remove(temporary, purge{count: &k.reaped, enough: func() bool { return ctx.Err() != nil }}, &outcome{})
		if len(temporary) < len(batch) || len(batch) == 0 {
			return
		}
		q.After = &batch[len(batch)-1]
	}
}

// expire removes what has not been used for as long as a TTL says.
func (k *Keeper) expire(ctx context.Context) {
	for _, ttl := range k.TTLs() {
		top, err := k.inv.Find(below(ttl.Pattern))
		if err != nil {
			continue // there is nothing yet
		}
		q := inventory.Query{Top: top, Most: mostFiles, Unknown: true, Rank: func(lastUse uint32, _ uint8) int64 { return int64(lastUse) }}
		for ctx.Err() == nil {
			batch := k.inv.Candidates(q)
			if len(batch) == 0 {
				break
			}
			last := batch[len(batch)-1]
			q.After = &last
			oldest := int64(k.inv.Now()) - int64(ttl.Unused/time.Second)
			old := slices.DeleteFunc(batch, func(c inventory.Candidate) bool { return int64(c.LastUse) > oldest })
			k.remove(old, purge{
				unknown: true, count: &k.expired, enough: func() bool { return ctx.Err() != nil },
				only: func(path string) bool { return covers(ttl.Pattern, path) },
			}, &outcome{})
			if last.Kind != inventory.Temporary && int64(last.LastUse) > oldest {
				break
			}
		}
	}
}

// victim is a candidate whose name is known.
type victim struct {
	inventory.Candidate
	dir, name, path string
	info            inventory.Info
	layout          classify.File
}

// remove has the files of a batch go that may, in order.
func (k *Keeper) remove(batch []inventory.Candidate, p purge, out *outcome) {
	all := k.named(batch)
	// Engines write a prompt from its beginning, and can use no block without those before it:
	// where uses do not tell, what was written last goes first.
	slices.SortStableFunc(all, func(a, b victim) int {
		return cmp.Or(cmp.Compare(order(a.Kind), order(b.Kind)), cmp.Compare(a.Rank, b.Rank), cmp.Compare(b.info.MtimeNs, a.info.MtimeNs))
	})
	for i := range all {
		if p.enough != nil && p.enough() {
			return
		}
		if p.only == nil || p.only(all[i].path) {
			k.removeOne(&all[i], p, out)
		}
	}
}

func order(kind inventory.Kind) int {
	if kind == inventory.Temporary {
		return 0
	}
	return 1
}

// named looks up the names of a batch in their directories. Those that have none are
// forgotten: they were removed without an event.
func (k *Keeper) named(batch []inventory.Candidate) (all []victim) {
	byDir := map[*inventory.Directory]map[uint64]int{}
	for i, c := range batch {
		if byDir[c.Dir] == nil {
			byDir[c.Dir] = map[uint64]int{}
		}
		byDir[c.Dir][c.Key.Ino] = i
	}
	names := make([]victim, len(batch))
	for d, wanted := range byDir {
		dir, there := k.inv.Path(d)
		if !there {
			continue
		}
		changes := make(map[uint64]uint64, len(wanted))
		for ino, i := range wanted {
			changes[ino] = k.inv.Changes(batch[i].Key)
		}
		isWanted := func(ino uint64) bool { _, ok := wanted[ino]; return ok }
		var unread error // of one of them: who knows which
		look := func(name string, _ uint64, stat func() (inventory.Info, error)) bool {
			info, err := stat()
			if err != nil && !errors.Is(err, unix.ENOENT) {
				unread = err
			}
			i, ok := wanted[info.Key.Ino]
			if err != nil || !ok || info.Key != batch[i].Key {
				return true
			}
			v := victim{Candidate: batch[i], dir: dir, name: name, path: name, info: info}
			if dir != "." {
				v.path = dir + "/" + name
			}
			v.layout = classify.Classify(v.path, classify.Context{})
			names[i] = v
			delete(wanted, info.Key.Ino)
			return len(wanted) > 0
		}
		err := k.inv.NamesOf(d, isWanted, look)
		if err == nil && len(wanted) > 0 {
			// They are gone, or the listings of this file system show other numbers than the files have.
			err = k.namedByTag(d, batch, wanted, look)
		}
		if len(wanted) > 0 {
			err = cmp.Or(err, unread)
		}
		switch {
		case err == nil:
			for ino, i := range wanted {
				k.inv.Forget(batch[i].Key, d, changes[ino])
			}
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			k.inv.Overlook() // it was moved or removed, and the event has not come, or there is none
		default:
			k.complain("list", "cannot read a directory, or a file in it, which therefore cannot go", "directory", dir, "err", err)
		}
	}
	for _, v := range names {
		if v.name != "" {
			all = append(all, v)
		}
	}
	return all
}

// namedByTag calls look with the entries of a directory whose names may be those of the wanted files.
func (k *Keeper) namedByTag(d *inventory.Directory, batch []inventory.Candidate, wanted map[uint64]int, look func(string, uint64, func() (inventory.Info, error)) bool) error {
	var tags [256]bool
	for _, i := range wanted {
		if tag, ok := k.inv.Tag(batch[i].Key); ok {
			tags[tag] = true
		}
	}
	return k.inv.Names(d, func(name string, ino uint64, stat func() (inventory.Info, error)) bool {
		return !tags[inventory.TagOf(name)] || look(name, ino, stat)
	})
}

// removeOne removes a victim if it may go, and what belongs to it first.
func (k *Keeper) removeOne(v *victim, p purge, out *outcome) {
	switch kind := kindOf(v.path); {
	case kind == inventory.Kept && !p.broken, kind == inventory.Unknown && !p.unknown, !v.info.Regular, v.info.Links > 1, k.pinned(v.path):
		return
	}
	if !k.idle(v.Key, v.LastUse) {
		out.busy = true
		k.kept.add(v.Key)
		return
	}
	if k.young(&v.layout, &v.info, out) {
		k.kept.add(v.Key)
		return
	}
	if v.layout.Delete == classify.SideFirst {
		if ready := k.removeSide(v, out); !ready {
			out.busy = true
			return
		}
	}
	if !k.unlink(v.dir, v.name, v.info, p.count) {
		out.busy = true
	}
}

// idle reports whether a file is not in use and has not been used since.
func (k *Keeper) idle(key FileKey, lastUse uint32) bool {
	f, ok := k.inv.File(key)
	return ok && !f.InUse && f.LastUse == lastUse
}

// young reports whether a file is younger than its grace period, or one whose writer may be at work on it.
func (k *Keeper) young(f *classify.File, i *inventory.Info, out *outcome) bool {
	grace := k.graceOf(f)
	left, young := k.wall.young(time.Unix(0, i.MtimeNs), grace)
	if young {
		out.later(left)
	}
	if f.Temp { // each look counts, also at one that is young by its mtime
		return k.atWork(i, grace, out) || young
	}
	if since, ok := k.inv.NewSince(i.Key); ok && since < grace {
		out.later(grace - since)
		young = true
	}
	return young
}

// graceOf returns for how long after its last change a file is left alone.
func (k *Keeper) graceOf(f *classify.File) time.Duration {
	grace := max(f.Grace, leastGrace)
	switch {
	case f.Temp && k.TempGrace != 0:
		grace = k.TempGrace
	case !f.Temp && k.limits().Grace != 0:
		grace = k.limits().Grace
	}
	return grace + k.Silent.behind()
}

// removeSide prepares the removal of an entry of two files: the one that says that the data
// is there goes first. It reports whether v may go now. A side file alone goes when
// its data is gone.
func (k *Keeper) removeSide(v *victim, out *outcome) (ready bool) {
	parts := v.layout.Parts()
	if v.layout.Temp || len(parts) != 2 {
		return true
	}
	base := func(path string) string {
		if v.dir == "." {
			return path
		}
		return path[len(v.dir)+1:]
	}
	if v.layout.Part == classify.Side {
		_, err := k.inv.Stat(v.Dir, base(parts[1]))
		return errors.Is(err, unix.ENOENT)
	}
	side := base(parts[0])
	info, err := k.inv.Stat(v.Dir, side)
	switch {
	case errors.Is(err, unix.ENOENT):
		return true
	case err != nil, !info.Regular, info.Links > 1:
		return false
	}
	if f, ok := k.inv.File(info.Key); ok && f.InUse || k.young(&v.layout, &info, out) {
		k.kept.add(info.Key)
		return false
	}
	return k.unlink(v.dir, side, info, nil)
}

// unlink removes a file if it is still as it was, and counts it.
func (k *Keeper) unlink(dir, name string, info inventory.Info, count *atomic.Int64) bool {
	f, _ := k.inv.File(info.Key)
	want := Victim{Key: info.Key, SizeBytes: info.SizeBytes, MtimeNs: info.MtimeNs}
	remove := k.Unlink
	if remove == nil {
		remove = k.inv.Unlink
	}
	switch err := remove(dir, name, want); {
	case err == nil:
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ESTALE), errors.Is(err, unix.ENOENT):
		k.kept.add(info.Key)
		return false
	default:
		k.complain("unlink", "cannot remove a file", "directory", dir, "name", name, "err", err)
		return false
	}
	if count != nil {
		count.Add(1)
		if count == &k.evicted {
			k.evictedBytes.Add(f.Bytes)
			k.evictedAges.add(int64(k.inv.Now()) - int64(f.LastUse))
		}
	}
	k.watched.gone(info.Key)
	k.changed()
	return true
}
