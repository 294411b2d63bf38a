package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/visibility"
	"github.com/kv3fs/kv3fs/internal/pageservice/forward"
)

const (
	// visiblePrefix begins the name of the file, among those of the page service that all hosts share, that a host overwrites so that another says
	// what it reads.
	visiblePrefix = "visible-"
	// visibleCheck bounds a check with one host.
	visibleCheck = time.Minute
	// visibleAgain is when a host that found nobody to ask looks again, for the first time; each time after that it waits for twice as long, up
	// to visibleSeldom: there may never be anybody.
	visibleAgain  = 3 * time.Second
	visibleSeldom = time.Minute
)

// visible is whether other hosts read what this one's rings have just written. What is known of the store decides at first, and then what another
// host says.
type visible struct {
	file   string // of this host
	mover  blockio.Mover
	reader *visibility.Reader
	is     atomic.Pointer[bool] // nil: nobody has said so far

	found time.Duration // a test's, in place of the default
}

func newVisible(data string, me hostID, m blockio.Mover, on store) *visible {
	if !on.shared {
		return nil
	}
	path := func(host string) string { return filepath.Join(sharedPages(data), visiblePrefix+host) }
	return &visible{file: path(me.Identity), mover: m, reader: &visibility.Reader{Mover: m, Path: path}}
}

// answers returns what answers another host's questions.
func (v *visible) answers() func(ctx context.Context, host string, question []byte) ([]byte, error) {
	if v == nil {
		return nil
	}
	return func(ctx context.Context, host string, question []byte) ([]byte, error) {
		if err := ValidIdentity(host); err != nil {
			return nil, err
		}
		var q visibility.Asked
		if err := json.Unmarshal(question, &q); err != nil {
			return nil, fmt.Errorf("a question about a file: %w", err)
		}
		a, err := v.reader.Read(ctx, host, q)
		if err != nil {
			return nil, err
		}
		return json.Marshal(a)
	}
}

// known returns whether another host reads at once what this one writes; nil: nobody has said so far.
func (v *visible) known() *bool {
	if v == nil {
		return nil
	}
	return v.is.Load()
}

func (v *visible) close() {
	if v != nil {
		v.reader.Close()
	}
}

// checkVisibility has another host say what it reads of what this one writes, once since the start, as soon as there is one.
func (r *replica) checkVisibility(ctx context.Context, c *cluster.Cluster) {
	v := r.at.visible
	if v == nil || v.is.Load() != nil {
		return
	}
	moreSeldom(ctx, func() bool {
		hosts, err := c.Hosts(ctx)
		if err != nil {
			r.notYetVisible("etcd", err)
		}
		for _, h := range hosts {
			if h.ID == r.at.me.Identity || h.Address == "" || ctx.Err() != nil {
				continue
			}
			if r.checkWith(ctx, forward.Target{Host: h.ID, Address: h.Address}) {
				return true
			}
		}
		return false
	})
}

// moreSeldom tries until that succeeds or ctx ends.
func moreSeldom(ctx context.Context, try func() bool) {
	for wait := visibleAgain; ctx.Err() == nil && !try(); wait = min(2*wait, visibleSeldom) {
		pause(ctx, wait)
	}
}

// checkWith has one host say what it reads, and reports whether it did.
func (r *replica) checkWith(ctx context.Context, to forward.Target) bool {
	v, log := r.at.visible, r.log.With("host", to.Host)
	check := func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, visibleCheck)
		defer cancel()
		return visibility.Check{Path: v.file, Mover: v.mover, Found: v.found, Ask: func(ctx context.Context, q visibility.Asked) (a visibility.Read, err error) {
			question, err := json.Marshal(q)
			if err != nil {
				return a, err
			}
			answer, err := r.client.Visible(ctx, to, question)
			if err != nil {
				return a, err
			}
			err = json.Unmarshal(answer, &a)
			return a, err
		}}.Run(ctx)
	}
	atOnce, err := check()
	if err == nil && !atOnce && v.mover.Sync.CompareAndSwap(false, true) {
		log.Warn("another host reads late what this one writes, so from now on each write is synced before it completes", "cure", "for GlusterFS, performance.strict-o-direct on, and mount it again")
		atOnce, err = check()
	}
	switch {
	case ctx.Err() != nil || errors.Is(err, forward.ErrNoReader):
		return false
	case err != nil:
		r.notYetVisible(to.Host, err)
		return false
	}
	v.is.Store(&atOnce)
	if atOnce {
		log.Info("another host reads at once what this one writes", "sync", v.mover.Sync.Load())
	} else {
		log.Error("another host reads late what this one writes, although each write is synced: engines there may get wrong KV", "cure", "mount the data directory without caching on all hosts (docs/hosts.md), or stop sharing it")
	}
	return true
}

// notYetVisible says why nothing is known so far.
func (r *replica) notYetVisible(asked string, err error) {
	if more, now := r.pace.Log("visible " + asked); now {
		r.log.Info("it is not known yet whether other hosts read at once what this one writes", "asked", asked, "err", err, "more", more)
	}
}
