package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/keeper/lease"
)

// No daemon hears of every write to a directory that other hosts change. So there, the daemons with a capacity do what kv3fs keep
// does: one of them has the lease, and looks for what has changed, and the others stand by. It is the same lease, so that
// kv3fs keep, on any host, is one of them.

// As kv3fs keep has it by default: hosts' clocks differ, and who has a file open on another host cannot be seen.
const (
	sharedLease      = 30 * time.Second
	sharedGrace      = 10 * time.Minute
	sharedScanEvery  = time.Minute
	sharedLooksEvery = 5000 // a second
)

var errKeptElsewhere = errors.New("this host does not keep the directory at present: run this on the one that does, which the log of this daemon names. " +
	"If it names none, try again in a while; if it says that this daemon keeps the directory no more, restart it")

// sharedKeeping keeps a shared data directory within its capacity whenever this host has the lease. nil: there is no capacity.
type sharedKeeping struct {
	service *keepService
	cancel  context.CancelFunc
	ended   chan struct{}
}

// keepShared begins to keep a shared data directory. The caller stops it.
func keepShared(data string, me hostID, o Keeping, log, audit *slog.Logger) (*sharedKeeping, error) {
	if saved, err := keeper.HasRules(filepath.Join(data, tree.StateName, keeperDir)); err != nil {
		return nil, err
	} else if saved {
		log.Warn("quotas, TTLs and pins that were set while the directory was this host's alone do not hold now: set them again, or serve with --shared off", "data", data)
	}
	if o.Capacity.None() {
		return nil, nil
	}
	o.Grace = cmp.Or(o.Grace, sharedGrace)
	c := KeepConfig{Dir: data, Keeping: o, Lease: cmp.Or(o.Lease, sharedLease), RefreshEvery: sharedScanEvery, LooksPerSecond: sharedLooksEvery, Log: log, Audit: audit}
	d, err := openKept(&c, "")
	if err != nil {
		return nil, fmt.Errorf("keep data directory %s within its capacity: %w", data, err)
	}
	began := make(chan struct{})
	s := &keepService{KeepConfig: c, back: backEvery, me: lease.Holder{Identity: me.Identity, Host: me.Host}, ready: func(bool) { close(began) }}
	ctx, cancel := context.WithCancel(context.Background())
	k := &sharedKeeping{service: s, cancel: cancel, ended: make(chan struct{})}
	var failed error
	go func() {
		defer close(k.ended)
		if failed = s.run(ctx, d); failed != nil {
			log.Error("this daemon does not keep the data directory within its capacity any more; other hosts may: restart it", "data", data, "err", failed)
		}
	}()
	select {
	case <-began:
		return k, nil
	case <-k.ended:
		cancel()
		return nil, failed
	}
}

func (k *sharedKeeping) stop() {
	if k != nil {
		k.cancel()
		<-k.ended
	}
}

// keeper returns the keeper of this host, if that has the lease; else nil.
func (k *sharedKeeping) keeper() *keeper.Keeper {
	if k == nil {
		return nil
	}
	return k.service.works.Load()
}
