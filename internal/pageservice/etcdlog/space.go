package etcdlog

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Shares of etcd's quota. A full etcd elects no leader, so it must not get there.
const (
	halfFull   = 0.50 // from here on the log is kept shorter
	nearlyFull = 0.70 // from here on nothing new is stored
	// The database file counts for the quota, and never shrinks by itself; etcd reuses the room in it, but not all of it.
	fileNearlyFull = 0.95
)

// spacePeriods is how often etcd's members are asked.
const spacePeriods = 5

// space looks at how full etcd is.
func (k *lookout) space(ctx context.Context) {
	if time.Since(k.spaceAt) < spacePeriods*k.o.Period {
		return
	}
	k.spaceAt = time.Now()
	members := k.cluster.Space(ctx)
	if !slices.ContainsFunc(members, func(m cluster.Member) bool { return m.Err == nil }) {
		return // what was true last is the best that is known
	}
	urgent, room := judge(members)
	k.urgent = urgent
	k.Log.mu.Lock()
	was := k.room
	k.room = room
	k.Log.mu.Unlock()
	switch {
	case room != nil && was == nil:
		k.o.Logger.Error("page log: nothing new is stored", "err", room)
	case room == nil && was != nil:
		k.o.Logger.Info("page log: etcd has room again")
	}
}

// judge says what is to be done about etcd's space. The fullest member counts: etcd takes no write if one of them is full.
func judge(members []cluster.Member) (urgent bool, room error) {
	for _, m := range members {
		if m.Err != nil {
			continue
		}
		quota := m.QuotaBytes
		if quota <= 0 {
			quota = cluster.DefaultQuotaBytes
		}
		used, file := float64(m.InUseBytes)/float64(quota), float64(m.DatabaseBytes)/float64(quota)
		urgent = urgent || used >= halfFull || m.NoSpace
		if used >= nearlyFull || file >= fileNearlyFull || m.NoSpace {
			room = fmt.Errorf("%w: etcd at %s uses %s of %s (its file has %s): nothing new is stored until there is room: etcdctl compact, then defrag each member; raise --quota-backend-bytes if that is not enough",
				pageservice.ErrUnavailable, m.Endpoint, humanize.IBytes(uint64(m.InUseBytes)), humanize.IBytes(uint64(quota)), humanize.IBytes(uint64(m.DatabaseBytes)))
			if m.NoSpace {
				room = fmt.Errorf("%w; then etcdctl alarm disarm", room)
			}
		}
	}
	return urgent, room
}
