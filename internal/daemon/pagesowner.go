package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/keeper/lease"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// The page files of a directory that hosts share must be handed out by one index. Without etcd that is the index of one
// host: it has a lease, by files in the directory, and the directory says whose index was the last.
// Another host's index does not know what that one has handed out since, so it begins by forgetting its keys.

// ownerName is a file in sharedPages.
const ownerName = "owner.json"

// pagesOwner is its content: whose index has handed out the pages of a data directory.
type pagesOwner struct {
	Store string `json:"store"`          // httpserver.Embedded, or the URL of etcd
	Host  string `json:"host,omitempty"` // of an embedded one: its identity
}

// sharedPages returns the directory that all hosts share for their page services.
func sharedPages(data string) string { return filepath.Join(data, tree.StateName, pagesDir) }

func makeSharedPages(data string, log *slog.Logger) error {
	dir := sharedPages(data)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the directory of all page services: %w", err)
	}
	return ownDir(dir, log)
}

// readPagesOwner returns a zero value if nobody was noted.
func readPagesOwner(data string) (o pagesOwner, err error) {
	file := filepath.Join(sharedPages(data), ownerName)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		return o, fmt.Errorf("%s says whose page index has handed out the pages of this directory, and cannot be read: %w; stop all kv3fs and all engines that use the directory, then remove it", file, err)
	}
	return o, nil
}

// note writes who the owner is.
func (o pagesOwner) note(data string) error {
	if was, err := readPagesOwner(data); err == nil && was == o {
		return nil
	}
	dir := sharedPages(data)
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ownerName+".*")
	if err != nil {
		return fmt.Errorf("note whose page index is used: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, ownerName))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("note whose page index is used: %w", err), os.Remove(f.Name()))
	}
	return syncDir(dir)
}

// distrust returns why the embedded index of a host does not know what was handed out since it was used last; "": it does.
func (o pagesOwner) distrust(data, me string) string {
	switch {
	case o == (pagesOwner{Store: httpserver.Embedded, Host: me}):
		return ""
	case o.Host != "":
		return "the page service of host " + o.Host + " has been used since"
	}
	// A version that noted nothing may have run on other hosts.
	all := filepath.Join(data, tree.StateName, hostsDir)
	hosts, err := os.ReadDir(all)
	if err != nil {
		return "the page service of another host may have been used since: " + err.Error()
	}
	for _, h := range hosts {
		dir := filepath.Join(all, h.Name(), pagesDir)
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if id, err := readHostID(filepath.Dir(dir)); err != nil || id.Identity != me {
			return "the page service of another host may have been used since: there is " + dir
		}
	}
	return ""
}

// forgetful is a log whose index forgets its keys, and gives no page out for as long as clients may use what they were given
// by another index.
type forgetful struct {
	pageservice.Log
	cause string
}

func (l forgetful) Start(o pageservice.LogOwner) error {
	replayed := o.Replayed
	o.Replayed = func() error {
		o.Missing(l.cause)
		return replayed()
	}
	return l.Log.Start(o)
}

// errOtherPages: another host's page service is used for the directory.
var errOtherPages = errors.New("another host's page service hands out the pages of this directory")

// pagesLeasePeriod is after how long without a sign of life another host may take over.
const pagesLeasePeriod = 10 * time.Second

// tenancy is this host's right to hand out the pages of a shared directory from an index of its own.
type tenancy struct {
	lease  *lease.Lease
	root   *os.Root
	period time.Duration
	log    *slog.Logger

	renewed atomic.Int64  // host.SinceBoot when the last renewal began that succeeded
	over    chan struct{} // closed when another host has it
	stop    chan struct{}
	done    chan struct{}
}

// lockPages keeps other page services of this host away from a shared directory. It returns nil on a file system without locks.
func lockPages(hostDir string) (*os.File, error) {
	lock, err := tryLock(filepath.Join(hostDir, "pages.lock"), os.O_CREATE)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("another kv3fs of this host runs its page service for the directory: stop that one, or give one of them --pages-listen off: %w", err)
	}
	return lock, nil
}

// takePages takes the right, if no other host has it. It waits where one may have it, for the period at most. alone: no other
// page service of this host runs, so one that had the right has ended.
func takePages(ctx context.Context, data string, me hostID, alone bool, period time.Duration, log *slog.Logger) (_ *tenancy, err error) {
	if err := makeSharedPages(data, log); err != nil {
		return nil, err
	}
	dir := sharedPages(data)
	t := &tenancy{period: period, log: log, over: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if t.root, err = os.OpenRoot(dir); err != nil {
		return nil, err
	}
	dead := func(h lease.Holder) bool { return alone && h.Identity == me.Identity }
	t.lease, err = lease.New(t.root, lease.Options{Period: period, Local: isLocal(data), Dead: dead, Me: lease.Holder{Identity: me.Identity, Host: me.Host}})
	if err != nil {
		return nil, err
	}
	for {
		began := host.SinceBoot()
		s, err := t.lease.Try()
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", dir, err)
		case s.Held:
			t.renewed.Store(int64(began))
			go t.keep()
			return t, nil
		case s.Changed && s.Holder != (lease.Holder{}):
			return nil, fmt.Errorf("%w: that of %s; give all hosts --pages-store etcd://HOST:PORT,.../PREFIX, and their page services agree, or --pages-listen off here", errOtherPages, s.Holder)
		}
		select {
		case <-time.After(min(max(s.Wait, period/100), period/looksPerPeriod)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// keep renews the lease.
func (t *tenancy) keep() {
	defer close(t.done)
	tick := time.NewTicker(t.period / looksPerPeriod)
	defer tick.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-tick.C:
		}
		began := host.SinceBoot()
		switch err := t.lease.Renew(); {
		case err == nil:
			t.renewed.Store(int64(began))
		case errors.Is(err, lease.ErrLost):
			t.log.Error("another host's page service has taken over while this one was stopped or cut off: this one answers nothing more; give all hosts --pages-store etcd://..., or restart this daemon once the other has stopped", "err", err)
			close(t.over)
			return
		default:
			t.log.Warn("cannot renew the lease of the page service: engines get 503 until that works again", "err", err)
		}
	}
}

// valid reports whether no other host can have the right. It asks nobody.
func (t *tenancy) valid() bool {
	select {
	case <-t.over:
		return false
	default:
	}
	return host.SinceBoot()-time.Duration(t.renewed.Load()) <= t.period/2
}

// end gives the right back. On nil it does nothing.
func (t *tenancy) end() error {
	if t == nil {
		return nil
	}
	close(t.stop)
	<-t.done
	err := t.lease.Release()
	t.close()
	return err
}

func (t *tenancy) close() {
	if t.root != nil {
		_ = t.root.Close() // nothing is written through it
	}
}
