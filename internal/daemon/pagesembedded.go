package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// startEmbedded opens this host's own index. On a directory that other hosts use, only one of them may.
func (s *pageService) startEmbedded(ctx context.Context, at pagesPlace, p Pages, o httpserver.Options, files *pageFiles) (_ *httpserver.Server, err error) {
	var right *tenancy
	defer func() {
		if err != nil {
			err = errors.Join(err, right.end())
		}
	}()
	if at.shared {
		if right, err = takePages(ctx, at.data, at.me, s.lock != nil, pagesLeasePeriod, p.Log); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(at.host, pagesDir)
	was, cause, err := trustEmbedded(at, p, dir)
	if err != nil {
		return nil, err
	}
	owner := nextEmbedded(at, p, was, cause)
	var log pageservice.Log = journal.New(dir, journal.Options{Logger: p.Log})
	if cause != "" {
		log = forgetful{log, cause}
	}
	handover := time.Duration(0)
	if owner.Moved {
		handover = movedHandover
	}
	x, err := index.Open(log, index.Options{Options: p.Index, Logger: p.Log, Handover: handover, Promised: owner.Promises})
	if err != nil {
		return nil, err
	}
	note := func(o pagesOwner) error { return errors.Join(makeSharedPages(at.data, p.Log), o.note(at.data)) }
	if right != nil {
		note = right.note
	}
	if err := takeOver(right, dir, was, owner, note); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	settles, endSettling := context.WithCancel(context.Background())
	var settling sync.WaitGroup
	if mine := p.Index.WithDefaults().Promises(); owner.Moved || owner.Store != "" && owner.Promises != mine {
		settling.Go(func() {
			settle(settles, settled(p.Index, owner.Promises, handover), p.Log, func(context.Context) error {
				now := owner
				now.Moved, now.Promises = false, mine
				return note(now)
			})
		})
	}
	endFiles, err := files.serve(x)
	if err != nil {
		endSettling()
		settling.Wait()
		return nil, errors.Join(err, x.Close())
	}
	s.end = func() error {
		endSettling()
		settling.Wait()
		endFiles()
		return errors.Join(x.Close(), right.end())
	}
	o.Probe = func() error { return probe(filepath.Join(dir, "probe")) }
	d := httpserver.New(x, o)
	if right != nil {
		d.Switch(httpserver.Source{Index: x, Valid: right.valid})
	}
	return d, nil
}

// trustEmbedded returns what is noted of whose index was used last. cause is why this host's must forget its keys; "": it need not.
func trustEmbedded(at pagesPlace, p Pages, dir string) (was pagesOwner, cause string, err error) {
	was, err = readPagesOwner(at.data)
	switch {
	case errors.Is(err, errUnreadableOwner) && p.StartOver:
		return pagesOwner{}, "nobody knows whose page service has been used last", nil
	case err != nil:
		return pagesOwner{}, "", err
	case was.prefix() != "" && !p.StartOver:
		return pagesOwner{}, "", fmt.Errorf("the page index of data directory %s is in %s: give that with --pages-store; or, to give it up for good, stop the kv3fs of all hosts and start one with --pages-start-over, which forgets all keys", at.data, was.Store)
	}
	id, err := readIndexID(dir)
	if err != nil {
		return pagesOwner{}, "", err
	}
	if at.shared || was.Store != "" || id != "" {
		cause = was.distrust(at.data, at.me.Identity, id)
	}
	if cause == "" && p.StartOver {
		p.Log.Warn("there is nothing to start over: this host's page index is the one that has been used last; kv3fs pages clear empties it", "index", dir)
	}
	return was, cause, nil
}

// nextEmbedded returns what is to be noted of this host's index while it is used, where was is what is noted until now; a zero value: nothing is.
func nextEmbedded(at pagesPlace, p Pages, was pagesOwner, cause string) pagesOwner {
	mine := p.Index.WithDefaults().Promises()
	next := was
	switch {
	case cause != "":
		next = pagesOwner{Promises: was.relied(), Moved: true}
	case was.Store == "" && !at.shared && (pagesOwner{}).relied().Keep(mine):
		return pagesOwner{} // of a directory of this host that was never another's: what is not noted counts as the defaults
	}
	next.Promises = next.Promises.And(mine)
	if cause != "" || was.Index == "" {
		next.Store, next.Host, next.Index = httpserver.Embedded, at.me.Identity, rand.Text()
	}
	return next
}

// takeOver notes whose index is used from now on, if that is not what is noted. The index's own ID comes last: if another host takes the right meanwhile,
// whatever is noted then does not name this index.
func takeOver(right *tenancy, dir string, was, next pagesOwner, note func(pagesOwner) error) error {
	switch {
	case next != was:
		if err := note(next); err != nil {
			return err
		}
	case right != nil:
		right.owner.Store(&next)
		return right.check()
	}
	if next.Index == was.Index {
		return nil
	}
	if err := replaceFile(filepath.Join(dir, indexIDName), []byte(next.Index)); err != nil {
		return fmt.Errorf("give the page index an ID: %w", err)
	}
	return nil
}
