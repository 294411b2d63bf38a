package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

// Keeping says how much the data directory may take. Without a capacity, and without quotas, TTLs or
// pins from before, there is no keeper: one costs the mount passthrough of files that are open for
// writing.
type Keeping struct {
	Capacity                keeper.Limit
	HighPercent, LowPercent float64       // 0: the keeper's defaults
	Grace                   time.Duration // 0: the keeper's default
	Lease                   time.Duration // of a shared directory: after how long without a sign of life another host keeps it
}

// keeperDir is the keeper's directory in tree.StateName.
const keeperDir = "keeper"

// keeping is the keeper of a daemon, and what it removes files through.
type keeping struct {
	*keeper.Keeper
	lock *os.File // of the state directory: kv3fs keep leaves this one alone
	tree atomic.Pointer[tree.Tree]
}

// garbagePercent is how much garbage there may be beside what the keeper knows of files, which for
// a million is 60 MiB, and has no pointers, so that collecting often costs next to nothing.
const garbagePercent = 15

// newKeeping returns the keeper of a data directory, or nil if there is to be none.
func newKeeping(data string, o Keeping, files *pageFiles, readonly bool, log *slog.Logger) (*keeping, error) {
	stateDir := filepath.Join(data, tree.StateName, keeperDir)
	if o.Capacity.None() {
		if readonly {
			return nil, nil // it removes nothing
		}
		if saved, err := keeper.HasRules(stateDir); err != nil || !saved {
			return nil, err
		}
	}
	if readonly {
		return nil, errors.New("a capacity and a read-only daemon: it could remove nothing; leave out one of them")
	}
	if err := fits(data, o.Capacity); err != nil {
		return nil, err
	}
	k := &keeping{}
	var err error
	options := keeper.Options{
		Dir: data, StateDir: stateDir, Skip: tree.StateName,
		Capacity: o.Capacity, HighPercent: o.HighPercent, LowPercent: o.LowPercent, Grace: o.Grace,
		Unlink: k.unlink, Log: log,
	}
	if files != nil { // not a typed nil
		options.PageFiles = files
		files.leases = func() bool { return k.tree.Load().HasLeases() }
	}
	k.Keeper, err = keeper.New(options)
	if err != nil {
		return nil, fmt.Errorf("keep data directory %s within its capacity: %w", data, err)
	}
	if k.lock, err = lockKeeping(data, unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// fits reports a capacity that is more than the file system has: nobody could hold it.
func fits(data string, capacity keeper.Limit) error {
	var st unix.Statfs_t
	if err := unix.Statfs(data, &st); err != nil {
		return fmt.Errorf("data directory %s: %w", data, err)
	}
	unit := uint64(max(st.Bsize, 1))
	if has := st.Blocks * unit; st.Blocks > 0 && uint64(capacity.Bytes)/unit > st.Blocks {
		return fmt.Errorf("a capacity of %d bytes is more than the file system of %s has, %d: give less, or a part of it such as 90%%", capacity.Bytes, data, has)
	}
	return nil
}

// usage returns the tree's Usage.
func (k *keeping) usage() tree.Usage {
	if k == nil {
		return nil // not a typed nil
	}
	return k
}

// unlink removes a victim of the keeper through the tree, whose clients may know it.
func (k *keeping) unlink(dir, name string, want keeper.Victim) error {
	return k.tree.Load().Evict(dir, name, want)
}

// start keeps the limit until stop is called, which returns when all is saved.
func (k *keeping) start(t *tree.Tree, log *slog.Logger) (stop func()) {
	if k == nil {
		return func() {}
	}
	k.tree.Store(t)
	state := k.State()
	log.Info("keeping the data directory within its limits; it is being scanned", "capacity", state.Capacity, "limit_bytes", state.LimitBytes,
		"used_bytes", state.UsedBytes, "high_watermark", k.HighPercent, "low_watermark", k.LowPercent, "quotas", state.Quotas, "ttls", state.TTLs, "pins", state.Pins)
	if !t.HasLeases() {
		log.Warn("the file system of the data directory has no leases: files may be removed that a program has open there, outside the mount; let programs use the mount only")
	}
	whole := 0
	if os.Getenv("GOGC") == "" {
		whole = debug.SetGCPercent(garbagePercent)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	return func() {
		if whole != 0 {
			debug.SetGCPercent(whole)
		}
		cancel()
		if err := <-done; err != nil {
			log.Warn("cannot save the use of files; at the next start their times of change count instead", "err", err)
		}
	}
}

// endWaiting has calls fail that wait for room, or would.
func (k *keeping) endWaiting() {
	if k != nil {
		k.EndWaiting()
	}
}

// keeper returns the keeper, nil if there is none.
func (k *keeping) keeper() *keeper.Keeper {
	if k == nil {
		return nil
	}
	return k.Keeper
}

// close ends the keeper, after the tree.
func (k *keeping) close() {
	if k != nil {
		_ = k.Close()
		k.lock.Close()
	}
}

// errNotKept is the answer to operators of a daemon without a keeper.
var errNotKept = errors.New("this daemon keeps no limit, so it neither knows what its files take nor keeps quotas, TTLs and pins: " +
	"start it with --capacity (--capacity 100% is all that the disk has)")

// operate starts the admin socket of a daemon in this host's state directory, "" if there is none, and
// returns what ends it. scrubs, shows and again are what it offers besides the keeper, and none the answer where there is none.
func (k *keeping) operate(dir string, scrubs admin.Scrubber, shows http.Handler, again *reloader, up *upgrader, none error, log *slog.Logger) (stop func()) {
	switch {
	case dir == "":
		return func() {}
	case k == nil:
		return operate(dir, nil, scrubs, shows, again, up, none, log) // not a typed nil
	}
	return operate(dir, k, scrubs, shows, again, up, none, log)
}

// operate starts an admin socket in a directory, and returns what ends it. shows answers below api.Prefix; nil: nobody does. So it is with up.
func operate(dir string, about admin.Keeper, scrubs admin.Scrubber, shows http.Handler, again *reloader, up *upgrader, none error, log *slog.Logger) (stop func()) {
	server := admin.NewServer(dir, about, none, log)
	server.Audit = again.audit
	server.Scrubs(scrubs)
	if shows != nil {
		server.Handle(api.Prefix, shows)
	}
	server.Reloads(again.asked)
	if up != nil {
		server.Upgrades(up)
	}
	if err := server.Start(); err != nil {
		log.Warn("no admin socket: kv3fs du, ls, stat, evict, quota, ttl and pin do not work", "err", err)
	}
	return server.Close
}
