package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/etcdlog"
)

// A host that leads looks at the note of whose index is in use. What it has not seen for a while may have changed: then it answers
// nothing, and after a while longer it makes room for a host whose directory works.

const (
	// looksEvery is how often it looks.
	looksEvery = time.Second
	// noteHolds is for how long what it saw holds. An index that pages were moved to gives none out for so much longer than its own clients may use one.
	noteHolds = 5 * time.Second
	// noteSpreads is how long after the note was replaced another host may still read the old one: GlusterFS takes up to two seconds.
	noteSpreads = 2 * time.Second
	// unseenTerms is for how many lease times it sees nothing before it gives the lead up: as long as a host that is elected may take.
	unseenTerms = 3
)

// errNotOwner: another index hands out the pages.
var errNotOwner = errors.New("this is not the page index in use")

// errUnseen: nobody knows whether another one does.
var errUnseen = errors.New("this host cannot see any more whose page index is in use")

// elsewhere returns the error for an index that is in use and is not that of this prefix.
func (r *replica) elsewhere(is pagesOwner) error {
	return fmt.Errorf("%w: the page index of data directory %s is in %s, and this host is to use %s: give it that store; or --pages-start-over, which moves the index of all hosts and forgets all keys", errNotOwner, r.at.data, is.where(), r.p.Cluster.Store)
}

// another returns the error for an index that is in the right place and is not the one that was noted.
func (r *replica) another(is pagesOwner, c *cluster.Cluster) error {
	return fmt.Errorf("%w: %s has the page index %s, and the one of data directory %s is %s: etcd or the directory was restored from a backup, or a start over was cut off; --pages-start-over begins anew and forgets all keys", errNotOwner, r.p.Cluster.Store, c.ID(), r.at.data, is.Index)
}

// owns returns the note, and an error if another index hands out the pages now. A note that has gone says nothing, if the rest of the directory is there.
func (r *replica) owns(c *cluster.Cluster) (is pagesOwner, err error) {
	is, err = readPagesOwner(r.at.data)
	switch {
	case err != nil:
		return is, err
	case is.Store == "":
		return is, r.isThere()
	case is.prefix() != c.Prefix():
		return is, r.elsewhere(is)
	case is.Index != "" && is.Index != c.ID():
		return is, r.another(is, c)
	}
	return is, nil
}

// isThere returns an error if the data directory is another one than at the start: an empty mount point, perhaps.
func (r *replica) isThere() error {
	file := filepath.Join(r.at.data, tree.StateName, dataIDName)
	id, err := readDataID(file)
	if err == nil && id != r.dataID {
		err = fmt.Errorf("%s is %s, and was %s: is another file system mounted there?", file, id, r.dataID)
	}
	return err
}

// inUse is what a host that leads knows of the note.
type inUse struct {
	seen  atomic.Int64          // SinceBoot, in ns: when the last look began that found this host's index there, or the first look
	first chan struct{}         // closed when one has found it there
	why   atomic.Pointer[error] // the outcome of the last look
	moved chan error            // gets why this host must not lead any longer
	stop  context.CancelFunc

	running sync.WaitGroup
}

// watchInUse looks at the note at once, and then until end, for a host that keeps what was promised before it was elected. Nobody relies on that any more
// after so long.
func (r *replica) watchInUse(c *cluster.Cluster, promised pageservice.Promises, relied time.Duration) *inUse {
	ctx, stop := context.WithCancel(context.Background())
	u := &inUse{first: make(chan struct{}), moved: make(chan error, 1), stop: stop}
	u.seen.Store(int64(host.SinceBoot()))
	u.running.Go(func() {
		first := sync.OnceFunc(func() { close(u.first) })
		kept := false // what the note says of promises
		for ; ctx.Err() == nil; pause(ctx, looksEvery) {
			began := host.SinceBoot()
			is, err := r.owns(c)
			if err == nil && !kept {
				if err = r.keep(ctx, c, is, promised); err == nil && is.Moved {
					u.running.Go(func() {
						settle(ctx, relied, r.log, func(ctx context.Context) error { return r.forgetMove(ctx, c) })
					})
				}
				kept = err == nil
			}
			u.why.Store(&err)
			switch {
			case err == nil:
				u.seen.Store(int64(began))
				first()
			case errors.Is(err, errNotOwner), errors.Is(err, errUnkept):
				u.moved <- err
				return
			}
		}
	})
	return u
}

// errUnkept: the pages were moved here since this host has read what their clients may rely on.
var errUnkept = errors.New("another page index has promised longer times to clients")

// keep has the note say what clients of this host may rely on, before there are any, and makes sure that this host keeps what the note says.
func (r *replica) keep(ctx context.Context, c *cluster.Cluster, is pagesOwner, promised pageservice.Promises) error {
	all := promised.And(r.p.Index.WithDefaults().Promises())
	switch {
	case is.Moved && !all.Keep(is.Promises):
		return errUnkept
	case is.Store == "" || is.Promises.Keep(all):
		return nil
	}
	return r.renote(ctx, c, func(o *pagesOwner) error {
		o.Promises = o.Promises.And(all)
		return nil
	})
}

// forgetMove notes that what was promised before the pages were moved binds nobody any more, but only what those that have led since have promised.
func (r *replica) forgetMove(ctx context.Context, c *cluster.Cluster) error {
	return r.renote(ctx, c, func(o *pagesOwner) error {
		since, err := etcdlog.Recorded(ctx, c)
		o.Promises, o.Moved = since.And(r.p.Index.WithDefaults().Promises()), false
		return err
	})
}

// renote changes the note of an index that is in use.
func (r *replica) renote(ctx context.Context, c *cluster.Cluster, change func(*pagesOwner) error) (err error) {
	right, err := takePages(ctx, r.at.data, r.at.me, r.alone, pagesLeasePeriod, r.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, right.end()) }()
	is, err := r.owns(c)
	if err != nil || is.Store == "" {
		return err
	}
	if err := change(&is); err != nil {
		return err
	}
	return right.note(is)
}

// age returns how long ago the note was right.
func (u *inUse) age() time.Duration { return host.SinceBoot() - time.Duration(u.seen.Load()) }

// valid reports whether no other index can have given out what this one has. It asks nobody.
func (u *inUse) valid() bool { return u.age() <= noteHolds }

// unseen returns why the note has not been seen for long; nil: it has.
func (u *inUse) unseen() error {
	if u.valid() {
		return nil
	}
	why := errors.New("the directory does not answer")
	if is := u.why.Load(); is != nil && *is != nil {
		why = *is
	}
	return fmt.Errorf("%w: %w", errUnseen, why)
}

// await waits until something happens or ctx ends. It returns an error if this host must not lead, or has not seen for too long that it may.
func (u *inUse) await(ctx context.Context, something <-chan struct{}, most time.Duration) error {
	tick := time.NewTicker(looksEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-something:
			return nil
		case err := <-u.moved:
			return err
		case <-tick.C:
			if u.age() > most {
				if why := u.unseen(); why != nil { // else it was seen just now
					return why
				}
			}
		}
	}
}

// end ends the looks. It waits for one that hangs.
func (u *inUse) end() {
	u.stop()
	u.running.Wait()
}
