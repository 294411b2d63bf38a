package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// identityFormat is what this version writes, and the highest that it reads.
const identityFormat = 1

// identity is the record of whose the prefix is.
type identity struct {
	Format  int       `json:"format"`
	DataID  string    `json:"data_id"`          // of the data directory
	ID      string    `json:"id"`               // of the cluster; another one after each StartOver
	Created time.Time `json:"created"`          // for people
	Host    string    `json:"host"`             // who made it
	Version string    `json:"version"`          // of kv3fs
	Before  string    `json:"before,omitempty"` // see Cluster.Before
}

// ID returns which cluster this is. It is another one after the log was begun anew, and "" before Identify or StartOver.
func (c *Cluster) ID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// Before returns what may have been used before this cluster began, and where its engines may still be at; "": nothing.
func (c *Cluster) Before() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.before
}

// Identify makes sure that the prefix is that of a data directory, which it is from now on if it was nobody's. established: the data directory
// has been used with an etcd before; then a prefix that is nobody's is ErrEmptied. ErrOtherCluster, ErrNewer: nothing of
// the prefix may be read or written.
func (c *Cluster) Identify(ctx context.Context, dataID string, established bool) error {
	is, _, err := c.readIdentity(ctx)
	if err == nil && is == nil {
		if established {
			return fmt.Errorf("%w: %s is empty, but the data directory %s was used with it: restore etcd, or name the right prefix; --pages-start-over begins anew and forgets all keys", ErrEmptied, c.config.Prefix, dataID)
		}
		is, err = c.writeIdentity(ctx, dataID, "", 0)
	}
	if err != nil {
		return err
	}
	return c.accept(is, dataID)
}

// StartOver makes the cluster another one, with another ID, whatever etcd has lost. What belongs to the old ID is to be forgotten.
// before says what may have been used until now; "": nothing. ErrLed: a host leads the old one, and goes on: nothing was changed.
// ErrOtherCluster: the prefix is another data directory's, and stays it.
func (c *Cluster) StartOver(ctx context.Context, dataID, before string) error {
	is, seen, err := c.readIdentity(ctx)
	if err != nil {
		return err
	}
	if is != nil && is.DataID != dataID {
		return c.accept(is, dataID)
	}
	if err := c.notLed(ctx); err != nil {
		return err
	}
	if is, err = c.writeIdentity(ctx, dataID, before, seen); err != nil {
		return err
	}
	return c.accept(is, dataID)
}

// notLed returns an error if another host leads. One that has just died leads until its lease is over.
func (c *Cluster) notLed(ctx context.Context) error {
	var queue []Leader
	err := c.persist(ctx, func(ctx context.Context) (err error) {
		queue, _, err = c.candidates(ctx)
		return err
	})
	if err != nil || len(queue) == 0 || queue[0].ID == c.config.HostID {
		return err
	}
	hosts, err := c.Hosts(ctx)
	if err != nil {
		return err
	}
	for _, h := range hosts {
		if h.ID == queue[0].ID && h.Role == RoleLeading {
			return fmt.Errorf("%w: host %s at %s leads what %s has, and nothing was changed: stop the kv3fs of all hosts first (one that was killed counts for some seconds), or leave --pages-start-over out", ErrLed, h.ID, h.Address, c.config.Prefix)
		}
	}
	return nil
}

// accept compares the identity with the data directory.
func (c *Cluster) accept(is *identity, dataID string) error {
	if is.DataID != dataID {
		return fmt.Errorf("%w: %s is that of the data directory %s (since %s, by host %s), and this one is %s: name another prefix, or the right directory",
			ErrOtherCluster, c.config.Prefix, is.DataID, is.Created.UTC().Format(time.DateTime), is.Host, dataID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id, c.before = is.ID, is.Before
	return nil
}

// readIdentity returns whose the prefix is, nil if it is nobody's, and the revision of that.
func (c *Cluster) readIdentity(ctx context.Context) (is *identity, revision int64, err error) {
	err = c.persist(ctx, func(ctx context.Context) error {
		answer, err := c.client.Get(ctx, c.key("cluster"))
		if err != nil || len(answer.Kvs) == 0 {
			return err
		}
		revision = answer.Kvs[0].ModRevision
		is, err = decodeIdentity(answer.Kvs[0].Value)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("etcd: %s: %w", c.key("cluster"), err)
	}
	return is, revision, nil
}

func decodeIdentity(b []byte) (*identity, error) {
	is := &identity{}
	if err := json.Unmarshal(b, is); err != nil {
		return nil, fmt.Errorf("is no record of kv3fs: %w: name another prefix", err)
	}
	if is.Format > identityFormat {
		return nil, fmt.Errorf("%w: format %d, by host %s with kv3fs %s: use that version here, too", ErrNewer, is.Format, is.Host, is.Version)
	}
	if is.Format < 1 || is.DataID == "" || is.ID == "" {
		return nil, fmt.Errorf("is no record of kv3fs: name another prefix")
	}
	return is, nil
}

// writeIdentity makes the prefix the data directory's if its identity is that of a revision (0: none), and returns whose it is now.
func (c *Cluster) writeIdentity(ctx context.Context, dataID, before string, seen int64) (is *identity, err error) {
	wanted := identity{Format: identityFormat, DataID: dataID, ID: rand.Text(), Created: time.Now(), Host: c.config.HostID, Version: c.config.Version, Before: before}
	record, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	key := c.key("cluster")
	err = c.persist(ctx, func(ctx context.Context) error {
		answer, err := c.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", seen)).
			Then(clientv3.OpPut(key, string(record))).
			Else(clientv3.OpGet(key)).
			Commit()
		if err != nil {
			return err
		}
		if answer.Succeeded {
			is = &wanted
			return nil
		}
		// Another host was faster, or this one, whose answer was lost.
		kvs := answer.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 {
			return fmt.Errorf("was deleted meanwhile: try again")
		}
		is, err = decodeIdentity(kvs[0].Value)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %s: %w", key, err)
	}
	return is, nil
}
