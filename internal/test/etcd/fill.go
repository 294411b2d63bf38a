package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ballast is what Fill fills etcd with.
const ballast = "/test-ballast/"

// Fill writes until etcd is out of space: no member takes a write or grants a lease any more. It wants members with a small quota.
func (m *Members) Fill() {
	m.t.Helper()
	if q := m.options.QuotaBytes; q <= 0 || q > 256<<20 {
		m.t.Fatalf("Fill needs members with a quota of at most 256 MiB, not %d", q)
	}
	c := m.Client()
	value := string(make([]byte, 1<<20))
	n := 0
	m.Await("etcd is full", func(ctx context.Context) error {
		for ctx.Err() == nil {
			n++
			_, err := c.Put(ctx, fmt.Sprintf("%s%d", ballast, n), value)
			if errors.Is(err, rpctypes.ErrNoSpace) {
				// Until all members know it, one may grant a lease.
				return m.granted(ctx)
			}
			if err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// granted returns an error if any member still takes a write.
func (m *Members) granted(ctx context.Context) error {
	for i, me := range m.members {
		if me.running() == nil {
			continue
		}
		c, err := m.client(i)
		if err != nil {
			return err
		}
		_, err = c.Put(ctx, ballast+"last", "")
		_ = c.Close()
		if !errors.Is(err, rpctypes.ErrNoSpace) {
			return fmt.Errorf("member %d took a write, or failed otherwise: %w", i, err)
		}
	}
	return nil
}

// Drain does what an operator does about a full etcd: it deletes what Fill wrote, compacts, defragments each member and disarms
// the alarm.
func (m *Members) Drain() {
	m.t.Helper()
	c := m.Client()
	m.Await("etcd has space", func(ctx context.Context) error {
		deleted, err := c.Delete(ctx, ballast, clientv3.WithPrefix())
		if err != nil {
			return err
		}
		_, err = c.Compact(ctx, deleted.Header.Revision, clientv3.WithCompactPhysical())
		if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
			return err
		}
		for _, e := range m.Endpoints() {
			if _, err := c.Defragment(ctx, m.scheme()+"://"+e); err != nil {
				return err
			}
		}
		if _, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
			return err
		}
		_, err = c.Put(ctx, ballast+"last", "")
		return err
	})
}
