package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
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
	owner, err := readPagesOwner(at.data)
	if err != nil {
		return nil, err
	}
	if owner.Store != "" && owner.Store != httpserver.Embedded {
		return nil, fmt.Errorf("the page index of data directory %s is in %s: give that with --pages-store; or, to give it up for good, stop all kv3fs and all engines that use the directory, and remove %s and every %s, since others may have got their pages meanwhile",
			at.data, owner.Store, filepath.Join(sharedPages(at.data), ownerName), filepath.Join(at.data, tree.StateName, hostsDir, "*", pagesDir))
	}
	dir := filepath.Join(at.host, pagesDir)
	var log pageservice.Log = journal.New(dir, journal.Options{Logger: p.Log})
	if at.shared || owner.Store != "" {
		if cause := owner.distrust(at.data, at.me.Identity); cause != "" {
			log = forgetful{log, cause}
		}
	}
	x, err := index.Open(log, index.Options{Options: p.Index, Logger: p.Log})
	if err != nil {
		return nil, err
	}
	if at.shared || owner.Store != "" {
		if err := (pagesOwner{httpserver.Embedded, at.me.Identity}).note(at.data); err != nil {
			return nil, errors.Join(err, x.Close())
		}
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
