package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/keeper/lease"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
)

// KeepPass is what a single pass over a directory has found and done.
type KeepPass struct {
	Dir        string
	Held       bool   // false: another keeper has the lease, so nothing was done
	Holder     string // who it is then
	LimitBytes int64  // what the capacity is here
	BytesWere  int64  // what the files took
	Bytes      int64  // what they take now, or would
	Files      int64
	Unreadable int64
	Atimes     string // what a read does to an atime here
}

// KeepOnce makes one pass over a directory, if no other keeper has the lease, and calls went with each file that went.
func KeepOnce(ctx context.Context, c KeepConfig, went func(keeper.Entry)) (p KeepPass, err error) {
	me, err := thisHost(host.Local(), c.Identity)
	if err != nil {
		return p, err
	}
	d, err := openKept(&c, "")
	if err != nil {
		return p, err
	}
	defer d.close()
	p.Dir = d.path
	l, err := lease.New(d.state, lease.Options{Period: c.Lease, Local: isLocal(d.path), Me: lease.Holder{Identity: me.Identity, Host: me.Host}})
	if err != nil {
		return p, err
	}
	standing, err := takeOrMeet(ctx, l, c)
	if err != nil || !standing.Held {
		p.Holder = standing.Holder.String()
		return p, err
	}
	p.Held = true
	defer func() { err = errors.Join(err, l.Release()) }()
	ctx, stop := context.WithCancel(ctx)
	renewed := make(chan error, 1)
	go func() { renewed <- renew(ctx, stop, l, c.Lease/looksPerPeriod) }()
	defer func() {
		stop()
		err = errors.Join(err, <-renewed)
	}()
	atimes, err := keeper.ProbeAtimes(d.state)
	if err != nil {
		c.Log.Warn("cannot find out whether atimes move; the time of the last change counts as last use", "err", err)
	}
	p.Atimes = atimes.String()
	silent := &keeper.Silent{Atime: atimes.Tell(), LooksPerSecond: c.LooksPerSecond, Behind: l.Behind(), May: l.Check}
	k, err := newKept(&c, d.path, filepath.Join(d.path, kv3fs.KeepDir), l.Token, silent)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	_, err = p.pass(ctx, k, false, went)
	if failed := k.Save(); failed != nil {
		c.Log.Warn("cannot save the use of files; the next pass goes by the times that the file system has", "err", failed)
	}
	return p, err
}

// takeOrMeet takes the lease, or waits until it has seen that its holder is alive.
func takeOrMeet(ctx context.Context, l *lease.Lease, c KeepConfig) (lease.Standing, error) {
	tick := time.NewTicker(c.Lease / looksPerPeriod)
	defer tick.Stop()
	for first := true; ; first = false {
		s, err := l.Try()
		if err != nil || s.Held || s.Changed {
			return s, err
		}
		if first {
			c.Log.Info("another keeper has the lease, waiting to see whether it is alive", "holder", s.Holder.String(), "token", s.Token, "at_most", s.Wait)
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-tick.C:
		}
	}
}

// renew renews a lease until ctx ends, and calls lost if it is lost.
func renew(ctx context.Context, lost func(), l *lease.Lease, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := l.Renew(); errors.Is(err, lease.ErrLost) {
			lost()
			return err
		}
	}
}

func (p *KeepPass) pass(ctx context.Context, k *keeper.Keeper, pretend bool, went func(keeper.Entry)) (*keeper.Remainder, error) {
	root := k.Inventory().Root()
	gone := int64(0)
	rest, err := k.Pass(ctx, pretend, func(e keeper.Entry) {
		gone += e.Bytes
		went(e)
	})
	p.LimitBytes, p.Bytes, p.BytesWere, p.Files, p.Unreadable = root.Limit(), root.Bytes(), root.Bytes()+gone, root.Files(), k.Inventory().Unread()
	return rest, err
}

// KeepPretend says what a pass over a directory would remove, in order, and then what would stay. It changes nothing, and
// asks for no lease.
func KeepPretend(ctx context.Context, c KeepConfig, went, stays func(keeper.Entry)) (p KeepPass, err error) {
	if p.Dir, err = keptPath(&c); err != nil {
		return p, err
	}
	if err := fits(p.Dir, c.Keeping.Capacity); err != nil {
		return p, err
	}
	state, err := os.MkdirTemp("", "kv3fs-keep-")
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	if err := copyState(state, filepath.Join(p.Dir, kv3fs.KeepDir)); err != nil {
		c.Log.Warn("cannot read what is known of uses and pins; files' own times count", "err", err)
	}
	atimes, err := keeper.AtimesOf(p.Dir)
	if err != nil {
		return p, err
	}
	p.Held, p.Atimes = true, atimes.String()
	k, err := newKept(&c, p.Dir, state, nil, &keeper.Silent{Atime: atimes.Tell(), LooksPerSecond: c.LooksPerSecond})
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	rest, err := p.pass(ctx, k, true, went)
	if err != nil {
		return p, err
	}
	return p, rest.Each(ctx, func(e keeper.Entry) bool { stays(e); return true })
}

// copyState copies what a keeper remembers.
func copyState(to, from string) error {
	entries, err := os.ReadDir(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "keeper-") || !e.Type().IsRegular() {
			continue
		}
		if err := copyFile(filepath.Join(to, e.Name()), filepath.Join(from, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("copy %s: %w", e.Name(), err)
		}
	}
	return nil
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
