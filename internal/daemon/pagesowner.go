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
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/keeper/lease"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// The page files of a directory must be handed out by one index: that of one host, or that of all hosts in etcd. Each index has
// an ID, and the directory says whose index was the last, and which. Any other one does not know what that has handed out since,
// so it begins by forgetting its keys. Where hosts share the directory and there is no etcd, the host has a lease, by files in the directory.

// ownerName is a file in sharedPages.
const ownerName = "owner.json"

// ownerFormat is what this version writes, and the highest that it reads.
const ownerFormat = 1

// pagesOwner is its content: whose index has handed out the pages of a data directory.
type pagesOwner struct {
	Format int    `json:"format"`
	Store  string `json:"store"`           // httpserver.Embedded, or the URL of etcd
	Host   string `json:"host,omitempty"`  // of an embedded one: its identity
	Index  string `json:"index,omitempty"` // its ID: see readIndexID, cluster.ID. "": noted before indices had one

	Promises pageservice.Promises `json:"promises,omitzero"` // what clients may rely on; see relied
	Moved    bool                 `json:"moved,omitempty"`   // some may still rely on what another index has promised, or its host answer
}

// errUnreadableOwner: nobody knows whose index was the last.
var errUnreadableOwner = errors.New("says whose page index has handed out the pages of this directory, and cannot be read")

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
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(text, &o); err != nil || o.Store == "" {
		return pagesOwner{}, errors.Join(fmt.Errorf("%s %w: stop the kv3fs of all hosts, and start one with --pages-start-over, which forgets all keys", file, errUnreadableOwner), err)
	}
	if o.Format > ownerFormat {
		return pagesOwner{}, fmt.Errorf("%s: %w: format %d, and this one reads %d: use that version here, too", file, cluster.ErrNewer, o.Format, ownerFormat)
	}
	return o, nil
}

// prefix returns that of the etcd where the owner's index is; "": it is in none.
func (o pagesOwner) prefix() string {
	if o.Store == "" || o.Store == httpserver.Embedded {
		return ""
	}
	c, err := cluster.ParseStore(o.Store)
	if err != nil {
		return o.Store // of no version that is known
	}
	return c.Prefix
}

// where says in which store the owner's index is.
func (o pagesOwner) where() string {
	if o.prefix() == "" {
		return "the files of host " + o.Host
	}
	return o.Store
}

// note writes who the owner is.
func (o pagesOwner) note(data string) error {
	o.Format = ownerFormat
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(sharedPages(data), ownerName), text); err != nil {
		return fmt.Errorf("note whose page index is used: %w", err)
	}
	return nil
}

// replaceFile gives a file other content, durably, so that nobody reads half of it.
func replaceFile(file string, text []byte) error {
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

// indexIDName is a file beside an embedded index, with its ID.
const indexIDName = "index-id"

// readIndexID returns the ID of the embedded index in a directory; "": it has none.
func readIndexID(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, indexIDName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(text)), err
}

// distrust returns why the embedded index of a host, with an ID, does not know what was handed out since it was used last; "": it does.
func (o pagesOwner) distrust(data, me, id string) string {
	switch {
	case o.prefix() != "":
		return "the page index of all hosts in " + o.Store + " has been used since"
	case o.Store != "" && o.Host == me && o.Index == id:
		return ""
	case o.Store != "" && o.Host == me:
		return "this host's index is not the one that has been used last"
	case o.Store != "":
		return "the page service of host " + o.Host + " has been used since"
	case id != "":
		return ownerName + " has gone, which said whose page service has been used last"
	}
	// A version that noted nothing may have run on other hosts.
	for _, other := range hostsIndices(data) {
		if host, err := readHostID(filepath.Dir(other)); err != nil || host.Identity != me {
			return "the page service of another host may have been used since: there is " + other
		}
	}
	return ""
}

// handedOut returns what may have handed out pages, if it was an index of a host's own; "": nothing.
func (o pagesOwner) handedOut(data string) string {
	if o.Store != "" {
		return "the page service of host " + o.Host + " has been used before"
	}
	for _, of := range hostsIndices(data) {
		return "the page service of a host may have been used before: there is " + of
	}
	return ""
}

// hostsIndices returns the directories of the hosts' own indices, as far as any can be found; one that cannot be read may be there.
func hostsIndices(data string) (found []string) {
	all := filepath.Join(data, tree.StateName, hostsDir)
	hosts, err := os.ReadDir(all)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return []string{all}
	}
	for _, h := range hosts {
		dir := filepath.Join(all, h.Name(), pagesDir)
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			found = append(found, dir)
		}
	}
	return found
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
	data   string
	lease  *lease.Lease
	root   *os.Root
	period time.Duration
	log    *slog.Logger

	owner   atomic.Pointer[pagesOwner] // as this host has noted; nil: it has not
	renewed atomic.Int64               // host.SinceBoot when the last renewal began that succeeded
	over    chan struct{}              // closed when another host has it
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
	t := &tenancy{data: data, period: period, log: log, over: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
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
			return nil, fmt.Errorf("%s: wait for what another host's page service may have: %w", dir, ctx.Err())
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
		switch err := t.renew(); {
		case err == nil:
			t.renewed.Store(int64(began))
		case errors.Is(err, lease.ErrLost), errors.Is(err, errOtherPages):
			t.log.Error("another host's page service has taken over while this one was stopped or cut off: this one answers nothing more; give all hosts --pages-store etcd://..., or restart this daemon once the other has stopped", "err", err)
			close(t.over)
			return
		default:
			t.log.Warn("cannot renew the lease of the page service: engines get 503 until that works again", "err", err)
		}
	}
}

// renew renews the lease, and makes sure that nobody has noted another index since.
func (t *tenancy) renew() error {
	if err := t.lease.Renew(); err != nil {
		return err
	}
	noted := t.owner.Load()
	if noted == nil {
		return nil
	}
	switch is, err := readPagesOwner(t.data); {
	case err != nil:
		return err
	case is.Store != "" && !is.same(*noted):
		return fmt.Errorf("%w: %s in %s", errOtherPages, is.Host, is.Store)
	}
	return nil
}

// note notes whose index is used from now on, unless another host has the right. A host that was stopped here, and had lost the right, may write
// its note nevertheless; then it fails, and its index is not the one that it has noted, or the holder of the right sees that.
func (t *tenancy) note(o pagesOwner) error {
	if err := t.check(); err != nil {
		return err
	}
	if err := o.note(t.data); err != nil {
		return err
	}
	o.Format = ownerFormat
	t.owner.Store(&o)
	return t.check()
}

// check returns an error if another host has the right.
func (t *tenancy) check() error {
	if err := t.lease.Check(); err != nil {
		return fmt.Errorf("%w, since this host was cut off or stopped while it started: %w", errOtherPages, err)
	}
	return nil
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
