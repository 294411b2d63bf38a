package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
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
	owner, cause, err := trustEmbedded(at, p, dir)
	if err != nil {
		return nil, err
	}
	var log pageservice.Log = journal.New(dir, journal.Options{Logger: p.Log})
	handover := time.Duration(0)
	if cause != "" {
		log, handover = forgetful{log, cause}, noteHolds+noteSpreads
	}
	x, err := index.Open(log, index.Options{Options: p.Index, Logger: p.Log, Handover: handover})
	if err != nil {
		return nil, err
	}
	if err := takeOver(at, right, dir, owner, cause); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	endFiles, err := files.serve(x)
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	s.end = func() error {
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

// trustEmbedded returns what is noted of this host's index; a zero value: it has yet to be noted. cause is why the index must forget its keys; "": it need
// not.
func trustEmbedded(at pagesPlace, p Pages, dir string) (noted pagesOwner, cause string, err error) {
	owner, err := readPagesOwner(at.data)
	switch {
	case errors.Is(err, errUnreadableOwner) && p.StartOver:
		return pagesOwner{}, "nobody knows whose page service has been used last", nil
	case err != nil:
		return pagesOwner{}, "", err
	case owner.prefix() != "" && !p.StartOver:
		return pagesOwner{}, "", fmt.Errorf("the page index of data directory %s is in %s: give that with --pages-store; or, to give it up for good, stop the kv3fs of all hosts and start one with --pages-start-over, which forgets all keys", at.data, owner.Store)
	}
	id, err := readIndexID(dir)
	if err != nil {
		return pagesOwner{}, "", err
	}
	if at.shared || owner.Store != "" || id != "" {
		cause = owner.distrust(at.data, at.me.Identity, id)
	}
	if cause != "" {
		return pagesOwner{}, cause, nil
	}
	if p.StartOver {
		p.Log.Warn("there is nothing to start over: this host's page index is the one that has been used last; kv3fs pages clear empties it", "index", dir)
	}
	if owner.Index == "" {
		owner = pagesOwner{}
	}
	return owner, "", nil
}

// takeOver notes that the index in a directory is used from now on, unless that is noted. Its ID comes last: if another host takes the right meanwhile,
// whatever is noted then does not name this index.
func takeOver(at pagesPlace, right *tenancy, dir string, noted pagesOwner, cause string) error {
	switch {
	case right != nil && noted.Store != "":
		right.owner.Store(&noted)
		return right.check()
	case noted.Store != "" || right == nil && cause == "":
		return nil
	}
	owner := pagesOwner{Store: httpserver.Embedded, Host: at.me.Identity, Index: rand.Text()}
	note := func() error { return owner.note(at.data) }
	if right != nil {
		note = func() error { return right.note(owner) }
	}
	if err := note(); err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(dir, indexIDName), []byte(owner.Index)); err != nil {
		return fmt.Errorf("give the page index an ID: %w", err)
	}
	return nil
}
