package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
	"github.com/kv3fs/kv3fs/internal/logpace"
)

// FileKey names a file or directory by the device of its file system, which is the major
// number shifted by 32 bits plus the minor one, and by its inode number.
type FileKey = inventory.Key

// Victim is a file as it was when it was chosen to go.
type Victim = inventory.Victim

// Options of New. But for the directories, the zero value is valid.
type Options struct {
	Dir      string // the data directory
	StateDir string // exists, and is the keeper's; may be in Dir below Skip
	Skip     string // an entry of Dir that is not counted and never touched

	// Capacity is the limit of the data directory; none: only quotas are kept to. A part of
	// the file system follows its size.
	Capacity Limit

	// HighPercent of a limit is where eviction begins, and LowPercent where it ends; 0: 95 and 90.
	HighPercent, LowPercent float64

	// Grace is how long after its last change a file is left alone, and TempGrace how long
	// a temporary one is. 0: as its layout needs, a minute and 10 minutes at least.
	Grace, TempGrace time.Duration

	// EvictUnknown lets files go that are of no layout. Otherwise only a TTL makes them.
	EvictUnknown bool

	// UseBonus is by how much each use beyond the first, which is that it was written, puts off
	// a file's turn; policy.MaxUses count. 0: by what has served most of late, in simulated caches of Capacity.
	UseBonus time.Duration

	// Unlink removes the entry of a directory, given relative to Dir, if it is still that
	// victim, and has Removed called. EBUSY, ESTALE, ENOENT: it is not, and stays. nil: the
	// keeper unlinks it itself.
	Unlink func(dir, name string, want Victim) error

	// PageFiles are the page files that may go as the last resort; nil: none may.
	PageFiles PageFiles

	// Rescan is how often the directory is read anew, for what changed without an event.
	// 0: hourly; negative: once, at start.
	Rescan time.Duration

	// Silent is for a directory whose changes and uses nobody tells. nil: events come.
	Silent *Silent

	// SaveEvery is how often the uses of files are saved. 0: a minute.
	SaveEvery time.Duration

	Log *slog.Logger // nil: slog.Default

	elapsed func() time.Duration // of tests: the clock of uses
}

func (o *Options) fill() error {
	def := func(p *float64, value float64) {
		if *p == 0 {
			*p = value
		}
	}
	def(&o.HighPercent, 95)
	def(&o.LowPercent, 90)
	if !(o.LowPercent > 0 && o.LowPercent < o.HighPercent && o.HighPercent <= 100) {
		return fmt.Errorf("watermarks of %g%% and %g%%: the low one must be above 0 and below the high one, and that at most 100", o.LowPercent, o.HighPercent)
	}
	for _, d := range []struct {
		p     *time.Duration
		value time.Duration
	}{{&o.Rescan, time.Hour}, {&o.SaveEvery, time.Minute}} {
		if *d.p == 0 {
			*d.p = d.value
		}
	}
	if o.Grace < 0 || o.TempGrace < 0 || o.UseBonus < 0 || o.UseBonus > forgetStep || o.SaveEvery < 0 || max(o.Grace, o.TempGrace) > forgetStep {
		return fmt.Errorf("grace periods of %v and %v, and a bonus of %v: give none below 0 or above %v", o.Grace, o.TempGrace, o.UseBonus, forgetStep)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Silent.fill()
	return o.Capacity.check()
}

// Stats counts what the keeper has done.
type Stats struct {
	Evicted, EvictedBytes int64 // files that went because room was needed
	Expired               int64 // because of a TTL
	Reaped                int64 // files that their writers have left behind unfinished
	Kept                  int64 // victims that turned out to be changed, in use or young, each once
	Refused               int64 // reservations that ended with ENOSPC or EDQUOT
	Waited                int64 // reservations that had to wait
	Unread                int64 // entries that scans could not read
}

// Keeper keeps the limits of one data directory. It implements the file tree's Usage: its
// methods may be called concurrently, do not call back into the tree but for
// Options.Unlink, and but for Reserve return at once.
type Keeper struct {
	Options   // as they were given to New; see limits
	now       *atomic.Pointer[Limits]
	relimited chan struct{} // Run is to look at the limits

	inv     *inventory.Inventory
	learner *learner
	wall    *wallClock
	watched *watched
	once    bool // it makes a Pass
	pace    logpace.Pace

	savingMu   sync.Mutex // held by who changes rules that are saved, until they are; taken before rulesMu
	rulesMu    sync.Mutex // never held during I/O: eviction takes it for each file; taken before waitMu
	rules      rules      // what its slices hold is never changed in place
	rulesStale bool       // what is saved of them is out of date

	waitMu       sync.Mutex
	queues       map[*inventory.Directory][]*waiter
	waiting      atomic.Int64  // waiters in all queues
	busyPatience time.Duration // the constant, but in tests
	ended        bool          // nobody waits any more

	givingUp atomic.Pointer[string] // the page file that is being removed

	kick  chan struct{}
	high  atomic.Bool                        // usage is above a high watermark: Run has been kicked
	tired map[*inventory.Directory]time.Time // until when no victims are looked for; Run's
	late  map[*inventory.Directory]bool      // not yet down at their low watermark; Run's
	every time.Duration                      // Run looks at what no event tells; Run's
	retry time.Duration                      // the constant, but in tests

	evicted, evictedBytes, expired, reaped, requested, refused, waited atomic.Int64
	kept                                                               keptFiles
	evictedAges                                                        ages // of what went for room
}

// New returns a keeper, which knows nothing of the directory until Run. The caller closes it
// after the last use. Errors: those of the directories, of the options, and of a file of
// quotas and pins that cannot be understood.
func New(opts Options) (*Keeper, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	learner, now := newLearner(), &atomic.Pointer[Limits]{}
	now.Store(&Limits{opts.Capacity, opts.HighPercent, opts.LowPercent, opts.Grace})
	inv, err := inventory.New(opts.Dir, inventory.Options{Skip: opts.Skip, Kind: kindAndGroup, Uses: learner, Elapsed: opts.elapsed, Silent: opts.silentInventory(now), Log: opts.Log})
	if err != nil {
		return nil, err
	}
	wall := newWallClock()
	monotonic := func() time.Duration { at, _ := wall.now(); return at }
	k := &Keeper{
		Options: opts, now: now, inv: inv, learner: learner, wall: wall, watched: newWatched(monotonic, 2*max(opts.Rescan, time.Hour)), kick: make(chan struct{}, 1),
		queues: make(map[*inventory.Directory][]*waiter), tired: make(map[*inventory.Directory]time.Time), late: make(map[*inventory.Directory]bool), every: tick, retry: retryScan, busyPatience: busyPatience,
	}
	k.relimited = make(chan struct{}, 1)
	if err := k.begin(); err != nil {
		return nil, errors.Join(err, inv.Close())
	}
	return k, nil
}

// begin takes in what was saved.
func (k *Keeper) begin() error {
	if err := os.MkdirAll(k.StateDir, 0o700); err != nil {
		return fmt.Errorf("keeper's state: %w", err)
	}
	if err := k.loadRules(); err != nil {
		return err
	}
	k.findPageFiles()
	if err := k.setCapacity(); err != nil {
		return err
	}
	if limit := k.inv.Root().Limit(); limit < leastLimit {
		return fmt.Errorf("a capacity of %v of the file system of %s is %d bytes: give at least 1 MiB", k.Capacity, k.Dir, limit)
	}
	k.loadHeat()
	return k.believe(quickScan)
}

// Close closes the directory. Run must have returned.
func (k *Keeper) Close() error { return k.inv.Close() }

// Inventory returns what the keeper knows.
func (k *Keeper) Inventory() *inventory.Inventory { return k.inv }

// Stats returns what the keeper has done so far.
func (k *Keeper) Stats() Stats {
	return Stats{
		Evicted: k.evicted.Load(), EvictedBytes: k.evictedBytes.Load(), Expired: k.expired.Load(), Reaped: k.reaped.Load(),
		Kept: k.kept.Load(), Refused: k.refused.Load(), Waited: k.waited.Load(), Unread: k.inv.Unread(),
	}
}

// tick is how often Run looks at what no event tells: the file system's free space, the
// wall clock, directories with quotas that come and go.
const tick = time.Second

// Where less is free than plentyBytes, Run looks more often: others may fill the rest within a tick.
const (
	plentyBytes = 4 << 30
	shortTick   = tick / 20
)

// rulesEvery is how often TTLs are applied, and leftovers of writers removed.
const rulesEvery = time.Minute

// Run scans the directory and keeps the limits until ctx ends; then it saves what it knows,
// and callers that still wait for room get ENOSPC. It must run once.
func (k *Keeper) Run(ctx context.Context) error {
	var scans sync.WaitGroup
	scanCtx, stop := context.WithCancel(ctx)
	scans.Go(func() { k.scan(scanCtx) })
	k.keep(ctx)
	stop()
	scans.Wait()
	k.EndWaiting()
	return k.saveHeat()
}

// retryScan is how soon a scan that could not read everything is repeated, at first; then it takes twice as long each
// time, up to Rescan.
const retryScan = time.Minute

// scan reads the directory at start and now and then.
func (k *Keeper) scan(ctx context.Context) {
	retry := k.retry
	for {
		began, unread := time.Now(), k.inv.Unread()
		if k.inv.Scan(ctx) != nil {
			return
		}
		k.Log.Info("scanned the data directory", "files", k.inv.Root().Files(), "bytes", k.inv.Root().Bytes(), "took", time.Since(began).Round(time.Millisecond), "unreadable", k.inv.Unread())
		k.findQuotas()
		k.wake()
		k.kickNow()
		if k.Silent != nil {
			k.watch(ctx)
			return
		}
		k.reapBroken(ctx, k.inv.Below(k.inv.Root()))
		var again <-chan time.Time
		if k.Rescan > 0 {
			next := k.Rescan
			if k.inv.Unread() > unread {
				next = min(retry, k.Rescan)
				retry = min(2*retry, k.Rescan)
			} else {
				retry = k.retry
			}
			t := time.NewTimer(next)
			defer t.Stop()
			again = t.C
		}
		for wait := true; wait; {
			look := time.NewTimer(tick)
			select {
			case <-ctx.Done():
				look.Stop()
				return
			case <-again:
				look.Stop()
				wait = false
			case <-look.C:
				overlooked, err := k.inv.Look(ctx)
				if err != nil {
					return
				}
				wait = !overlooked
			}
		}
	}
}

// keep keeps the limits until ctx ends.
func (k *Keeper) keep(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	// Files come to the end of their grace periods without an event.
	later := time.NewTimer(math.MaxInt64)
	defer later.Stop()
	var saved, ruled time.Time
	saved = time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.kick:
		case <-later.C:
		case <-ticker.C:
			k.look()
			ticker.Reset(k.every)
		case <-k.relimited:
			k.look()
		}
		if next := k.makeRoom(ctx); next > 0 {
			later.Reset(next)
		}
		if k.inv.Scanned() && time.Since(ruled) > rulesEvery {
			ruled = time.Now()
			k.expire(ctx)
			k.reap(ctx)
		}
		if time.Since(saved) > k.SaveEvery {
			saved = time.Now()
			if err := k.saveHeat(); err != nil {
				k.complain("save", "cannot save the use of files; after a restart their mtimes count instead", "err", err)
			}
		}
	}
}

// look sees what no event tells.
func (k *Keeper) look() {
	if step := k.wall.look(); step != 0 {
		k.Log.Warn("the wall clock was set; for a grace period, files count as young by the time before and after", "step", step)
	}
	if k.findQuotas() {
		k.savingMu.Lock()
		err := k.saveRules()
		k.savingMu.Unlock()
		if err != nil {
			k.complain("rules", "cannot save the new path of a directory with a quota", "err", err)
		}
	}
	if err := k.setCapacity(); err != nil {
		k.complain("capacity", "cannot tell how much space the file system has", "err", err)
	}
	k.wake()
}

// reserveBytes is what is left free of a file system at least, up to a hundredth of it: the
// keeper learns late of what others write there.
const reserveBytes = 64 << 20

// setCapacity makes the root's limit what the capacity says, or less where the file system
// has less: others use it, too.
func (k *Keeper) setCapacity() error {
	limits := k.limits()
	if limits.Capacity.None() {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(k.inv.FD(), &st); err != nil {
		return fmt.Errorf("statfs %s: %w", k.Dir, err)
	}
	total := clampMul(st.Blocks, st.Bsize)
	limit := limits.Capacity.of(total)
	root := k.inv.Root()
	free := clampMul(st.Bavail, st.Bsize) - min(reserveBytes, total/100)
	if k.every = tick; free < plentyBytes {
		k.every = shortTick
	}
	if there := max(root.Bytes()+free, 0); there < limit && k.inv.Scanned() {
		limit = there
	}
	root.SetLimit(max(limit, 1))
	k.learner.tuner.SetCapacity(int64(float64(root.Limit()) * limits.filled()))
	return nil
}

// quickScan bounds how long a start waits for a scan where nobody remembers what is there.
const quickScan = 250 * time.Millisecond

// believe takes what the file system holds for the directory's, up to what is for files, where
// nobody remembers what that was: until the first scan has ended, writers wait rather
// than exceed it. A directory that can be scanned within that time is.
func (k *Keeper) believe(within time.Duration) error {
	root := k.inv.Root()
	if k.Capacity.None() || root.Believed() > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if k.inv.Scan(ctx) == nil {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(k.inv.FD(), &st); err != nil {
		return fmt.Errorf("statfs %s: %w", k.Dir, err)
	}
	root.Believe(min(clampMul(st.Blocks-min(st.Bfree, st.Blocks), st.Bsize), root.Limit()-root.ForEntries()))
	return nil
}

func clampMul(blocks uint64, size int64) int64 {
	if size <= 0 || blocks > math.MaxInt64/2/uint64(size) {
		return math.MaxInt64 / 2
	}
	return int64(blocks) * size
}

// complain logs a lasting trouble now and then.
func (k *Keeper) complain(kind, message string, args ...any) {
	if more, now := k.pace.Log(kind); now {
		k.Log.Warn(message, append(args, "more", more)...)
	}
}

// limited returns the directories with a limit, those deep down first.
func (k *Keeper) limited() []*inventory.Directory {
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	var all []*inventory.Directory
	for _, q := range k.rules.quotas {
		if q.dir != nil {
			all = append(all, q.dir)
		}
	}
	return append(all, k.inv.Root())
}

// kickNow has Run look for what is to be done.
func (k *Keeper) kickNow() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// kindAndGroup says how a file may be treated, and whose it is.
func kindAndGroup(path string) (inventory.Kind, inventory.Group) {
	f := classify.Classify(path, classify.Context{})
	return kindOfLayout(&f), inventory.Group{Owner: f.Owner.String(), Model: f.Model}
}

// kindOf says how a file may be treated.
func kindOf(path string) inventory.Kind {
	f := classify.Classify(path, classify.Context{})
	return kindOfLayout(&f)
}

func kindOfLayout(f *classify.File) inventory.Kind {
	switch {
	case f.Delete == classify.AskOperator:
		return inventory.Unknown
	case f.Delete == classify.Never || f.Delete == classify.ByService:
		return inventory.Kept
	case f.Temp:
		return inventory.Temporary
	case f.Part == classify.Side:
		return inventory.Side
	}
	return inventory.Entry
}

// Read says that a file was used: bytes of it were read through a ring, or it was opened
// through the mount.
func (k *Keeper) Read(key FileKey) { k.inv.Read(key) }

// Opened says that a use of a file begins, which Closed ends. They nest. name is "" if it has none.
func (k *Keeper) Opened(key, dir FileKey, name string) { k.inv.Opened(key, dir, name) }

// Closed ends a use of a file and says how many blocks it takes now; negative: not known.
func (k *Keeper) Closed(key FileKey, blocks512 int64) {
	k.inv.Closed(key, blocks512)
	k.changed()
}

// Created says that there is a new file or directory, or one more name of a file.
func (k *Keeper) Created(key, dir FileKey, name string, isDir bool) {
	k.inv.Created(key, dir, name, isDir)
}

// Removed says that a name is gone, while its inode is still held. last: it has no other.
func (k *Keeper) Removed(key, dir FileKey, name string, last bool) {
	k.inv.Removed(key, dir, name, last)
	k.vanished(dir, name, false)
	k.changed()
}

// Renamed says that a file or directory has another place.
func (k *Keeper) Renamed(key, from FileKey, oldName string, to FileKey, newName string) {
	k.inv.Renamed(key, from, oldName, to, newName)
	k.vanished(from, oldName, true)
	k.changed()
}

// Settle ends a reservation, or with 0 just says that a file has changed, and how many
// blocks it takes now; negative: not known. Of the calls for one file the later is the newer.
func (k *Keeper) Settle(key FileKey, reserved, blocks512 int64) {
	k.inv.Settle(key, reserved, blocks512)
	k.changed()
}

// SpaceOf returns what a directory may take, and how much of that is free, for statfs.
func (k *Keeper) SpaceOf(dir FileKey) (capacityBytes, freeBytes int64, limited bool) {
	limit, left := k.inv.Room(dir)
	if limit == inventory.Unlimited {
		return 0, 0, false
	}
	return limit, left, true
}
