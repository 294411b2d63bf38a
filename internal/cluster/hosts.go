package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/host"
)

// Host is what a host says of itself. It is a hint: the host may have gone since.
type Host struct {
	ID      string `json:"id"`
	Address string `json:"address"` // HOST:PORT of its daemon, for other hosts
	Version string `json:"version"` // of kv3fs
	State
}

// State is how far a host is, as Announce was told.
type State struct {
	Role    string `json:"role,omitempty"`    // following, electing, RoleLeading
	Applied uint64 `json:"applied,omitempty"` // index in the log up to which the host has applied it
	Partial bool   `json:"partial,omitempty"` // it has forgotten some of that for lack of memory
	World   int    `json:"world,omitempty"`   // how many ranks it waits for
	Cut     int64  `json:"cut,omitempty"`     // the term whose leader it does not reach

	// Hash is that of its state at an index, to be compared with that of other hosts with the same version and epoch. 0: not known.
	Checkpoint uint64 `json:"checkpoint,omitempty"`
	Hash       uint64 `json:"hash,omitempty,string"`
	Epoch      uint64 `json:"epoch,omitempty"`
}

// RoleLeading is the Role of a host that answers for all.
const RoleLeading = "leading"

// Leader is a candidate, and the first of them leads, or will as soon as it has read all of the log. The zero value is nobody.
type Leader struct {
	Host
	Revision int64 // of its term

	key string
}

func (h Host) encode() (string, error) {
	b, err := json.Marshal(h)
	return string(b), err
}

func decodeHost(b []byte) (h Host, err error) {
	if err := json.Unmarshal(b, &h); err != nil {
		return Host{}, fmt.Errorf("etcd: no record of a host: %w", err)
	}
	return h, nil
}

// candidates returns all candidates, oldest first, and the revision at which they were there.
func (c *Cluster) candidates(ctx context.Context, options ...clientv3.OpOption) (queue []Leader, revision int64, err error) {
	options = append(options, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	answer, err := c.client.Get(ctx, c.key("election", ""), options...)
	if err != nil {
		return nil, 0, err
	}
	for _, kv := range answer.Kvs {
		h, err := decodeHost(kv.Value)
		if err != nil {
			h = Host{ID: string(kv.Key)} // of another version, perhaps; it has its turn nevertheless
		}
		queue = append(queue, Leader{Host: h, Revision: kv.CreateRevision, key: string(kv.Key)})
	}
	return queue, answer.Header.Revision, nil
}

// WatchLeader calls f with the first of the candidates now, and whenever it is another one, until ctx ends, whose error it returns. f
// gets the zero value where there is none. While etcd does not answer, f is not called.
func (c *Cluster) WatchLeader(ctx context.Context, f func(Leader)) error {
	told, before := false, Leader{}
	for {
		var queue []Leader
		var revision int64
		err := c.persist(ctx, func(ctx context.Context) (err error) {
			queue, revision, err = c.candidates(ctx)
			return err
		})
		if err != nil && ctx.Err() == nil && c.pause(ctx, lookPeriod) == nil {
			continue // it may be permitted again
		}
		if err != nil {
			return errors.Join(ctx.Err(), c.ctx.Err())
		}
		first := Leader{}
		if len(queue) > 0 {
			first = queue[0]
		}
		if !told || first != before {
			f(first)
			told, before = true, first
		}
		c.awaitChange(ctx, c.key("election", ""), revision, lookPeriod, clientv3.WithPrefix())
	}
}

// Hosts returns all hosts that were alive within some lease times, by ID.
func (c *Cluster) Hosts(ctx context.Context) (hosts []Host, err error) {
	err = c.persist(ctx, func(ctx context.Context) error {
		hosts = nil
		answer, err := c.client.Get(ctx, c.key("hosts", ""), clientv3.WithPrefix())
		if err != nil {
			return err
		}
		for _, kv := range answer.Kvs {
			h, err := decodeHost(kv.Value)
			if err != nil {
				h = Host{ID: strings.TrimPrefix(string(kv.Key), c.key("hosts", ""))}
			}
			hosts = append(hosts, h)
		}
		return nil
	})
	return hosts, err
}

// hostLease is for how many lease times a host is listed that says nothing.
const hostLease = 3

// Announce lists this host among the cluster's until ctx ends, whose error it returns, with what state returns: soon after that has changed, or once in a lease
// time if only Applied has. While etcd does not answer, or is full, the host is not listed, which harms nobody.
func (c *Cluster) Announce(ctx context.Context, state func() State) error {
	for {
		err := c.announce(ctx, state)
		if ctx.Err() != nil || c.ctx.Err() != nil {
			return errors.Join(ctx.Err(), c.ctx.Err())
		}
		c.config.Logger.Warn("this host is not listed in etcd", "err", err)
		if err := c.pause(ctx, c.config.LeaseTTL); err != nil {
			return err
		}
	}
}

// announce lists this host for one lease.
func (c *Cluster) announce(ctx context.Context, state func() State) error {
	l, err := c.grant(ctx, hostLease*c.config.LeaseTTL)
	if err != nil {
		return err
	}
	c.wg.Go(l.keep)
	defer func() {
		l.end(errors.New("the host leaves"))
		withdraw, cancel := context.WithTimeout(c.ctx, withdrawTimeout)
		defer cancel()
		if err := l.revoke(withdraw); err != nil {
			c.config.Logger.Info("this host is listed for a while longer", "err", err)
		}
	}()
	defer context.AfterFunc(ctx, func() { l.end(ctx.Err()) })()
	listed, at := Host{}, time.Duration(0)
	for {
		now := c.Host()
		now.State = state()
		settled := now
		settled.Applied = listed.Applied
		if settled != listed || now != listed && host.SinceBoot()-at >= c.config.LeaseTTL {
			record, err := now.encode()
			if err != nil {
				return err
			}
			err = c.persist(l.ctx, func(ctx context.Context) error {
				_, err := c.client.Put(ctx, c.key("hosts", now.ID), record, clientv3.WithLease(l.id))
				return err
			})
			if err != nil {
				return err
			}
			listed, at = now, host.SinceBoot()
		}
		if c.pause(l.ctx, c.config.LeaseTTL/10) != nil {
			return context.Cause(l.ctx)
		}
	}
}
