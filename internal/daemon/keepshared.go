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

var errKeptElsewhere = errors.New("this daemon does not keep the directory at present: another host, which its log names, has the lease; run this there")

// keepShared keeps a shared data directory within its capacity whenever this host has the lease, until stop is called.
func keepShared(data string, me hostID, o Keeping, log *slog.Logger) (stop func(), err error) {
	if saved, err := keeper.HasRules(filepath.Join(data, tree.StateName, keeperDir)); err != nil {
		return nil, err
	} else if saved {
		log.Warn("quotas, TTLs and pins that were set while the directory was this host's alone do not hold now: set them again, or serve with --shared off", "data", data)
	}
	if o.Capacity.None() {
		return func() {}, nil
	}
	o.Grace = cmp.Or(o.Grace, sharedGrace)
	c := KeepConfig{Dir: data, Keeping: o, Lease: cmp.Or(o.Lease, sharedLease), RefreshEvery: sharedScanEvery, LooksPerSecond: sharedLooksEvery, Log: log}
	d, err := openKept(&c, "")
	if err != nil {
		return nil, fmt.Errorf("keep data directory %s within its capacity: %w", data, err)
	}
	began := make(chan struct{})
	s := &keepService{KeepConfig: c, back: backEvery, me: lease.Holder{Identity: me.Identity, Host: me.Host}, ready: func(bool) { close(began) }}
	ctx, cancel := context.WithCancel(context.Background())
	var failed error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if failed = s.run(ctx, d); failed != nil {
			log.Error("this daemon does not keep the data directory within its capacity any more; other hosts may: restart it", "data", data, "error", failed)
		}
	}()
	stop = func() {
		cancel()
		<-ended
	}
	select {
	case <-began:
		return stop, nil
	case <-ended:
		cancel()
		return nil, failed
	}
}
