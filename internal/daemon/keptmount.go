package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/host"
)

// A mount outlives its daemon where somebody keeps its device: systemd, or kv3fs hold. What the next daemon must know then is in
// the state of restarts.

// gateTime bounds how long a daemon that hands its mount over waits for requests that are being answered. What is not answered then, the
// next one gets again, and asks whether it was done.
const gateTime = 5 * time.Second

// keptState returns where the mount's state is kept; nil: the mount ends with the daemon. Where nobody has kept the device, what an earlier daemon
// has left is of no use.
func (c *Config) keptState(state *restart.Dir) (*restart.Dir, error) {
	if state == nil || c.Descriptors.Inherits(fdstore.Mount) {
		return state, nil
	}
	return state, errors.Join(fuseserver.Discard(state), tree.Discard(state))
}

// stateLost is called if state cannot be written.
func stateLost(state *restart.Dir, log *slog.Logger) func(error) {
	return func(err error) {
		log.Warn("what a successor must know of the mount cannot be kept: the next restart cuts its clients off", "err", errors.Join(err, fuseserver.Forsake(state)))
	}
}

// inheritMount prepares to take over the mount of the daemon before, and reports whether that can be done. If not, that mount's
// connection is ended, so that nobody waits for it.
func (c *Config) inheritMount(t *tree.Tree, state *restart.Dir, point string) (adopts bool, err error) {
	device := c.Descriptors.Take(fdstore.Mount)
	if state != nil {
		if c.Mount.Recalled, err = fuseserver.Recall(t, state); err != nil {
			c.Log.Warn("the mount ends with this daemon", "err", err)
			state = nil
		}
	}
	c.Mount.State = state
	if device == nil {
		return false, nil
	}
	c.Mount.Adopt = device
	why := errors.New("no state of restarts is kept")
	if state != nil {
		why = fuseserver.CanAdopt(t, point, c.Mount)
	}
	if why == nil {
		return true, nil
	}
	c.Mount.Adopt = nil
	c.Log.Warn("the mount of the daemon before cannot be taken over: its clients are cut off", "mount", point, "why", why)
	return false, errors.Join(fuseserver.EndInherited(device), c.Descriptors.Remove(fdstore.Mount))
}

// keepMount has the mount's device kept. The caller closes what it returns when the daemon has ended.
func (c *Config) keepMount(mnt *fuseserver.Mount) (*os.File, error) {
	if c.Mount.State == nil {
		return nil, nil
	}
	device, err := mnt.Device()
	if err != nil {
		return nil, err
	}
	of := fdstore.Connection{Minor: mnt.Minor(), Point: mnt.Point()}
	if mnt.Adopted() {
		return device, c.Descriptors.Has(fdstore.Mount, device, of)
	}
	if err := c.Descriptors.Keep(fdstore.Mount, device, of); err != nil {
		return device, fmt.Errorf("the mount ends with this daemon: %w", err)
	}
	return device, nil
}

// handOver leaves the mount to the next daemon, which goes on with it.
func (c *Config) handOver(mnt *fuseserver.Mount, t *tree.Tree) {
	ctx, cancel := context.WithTimeout(context.Background(), gateTime)
	defer cancel()
	h := handedOver{Token: rand.Text(), Since: host.SinceBoot(), HeldBack: true}
	if err := mnt.Gate(ctx); err != nil {
		c.Log.Warn("handing the mount over with requests in progress", "err", err)
		h.HeldBack = false
	}
	if err := h.leave(c.Rings.Restart); err != nil {
		c.Log.Warn("the next daemon is not told how this one has handed over", "err", err)
	}
	t.Abandon() // until the process ends, requests that wait at the gate use it
}

// ended returns the former mounts without the one that goes on.
func (c *Config) ended(former []formerMount) []formerMount {
	if c.Mount.Adopt == nil {
		return former
	}
	minor, ok := fuseserver.ConnectionOf(c.Mount.Adopt)
	return slices.DeleteFunc(former, func(m formerMount) bool { return ok && m.minor == minor })
}
