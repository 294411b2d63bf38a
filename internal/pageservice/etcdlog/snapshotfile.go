package etcdlog

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Snapshots lie in the shared directory: a file is complete and on the servers before it has its name.

// snapshotName is unique, also where a host takes a snapshot at an index once more: etcd may name the first.
func snapshotName(h *snapshotHeader) string {
	return fmt.Sprintf("%s-%020d-%s-%s", h.cluster, h.index, h.by.Host, rand.Text()[:8])
}

// writeSnapshot writes a snapshot into dir, which it creates if need be.
func writeSnapshot(dir string, h *snapshotHeader, records func(emit func([]byte) error) error) (reference, error) {
	r := reference{writer: h.by, Index: h.index, Chain: h.chain, State: h.state, File: snapshotName(h)}
	path := filepath.Join(dir, r.File)
	err := replaceFile(path, path+unfinishedSuffix, func(w io.Writer) (err error) {
		r.Bytes, r.Sum, err = encodeSnapshot(w, h, records)
		return err
	}, func() error { return nil })
	return r, err
}

// readSnapshot passes on the records of the snapshot that r names, which can only be believed when it returns nil. An error
// that is about the content wraps ErrCorrupt and names the file.
func readSnapshot(dir, cluster string, r reference, each func(rec []byte) error) error {
	path := filepath.Join(dir, r.File)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != r.Bytes {
		return damaged("%s has %d bytes; want %d", path, info.Size(), r.Bytes)
	}
	h, sum, err := decodeSnapshot(f, each)
	var notRead *os.PathError
	switch {
	case errors.As(err, &notRead), errors.Is(err, pageservice.ErrClosed):
		return err
	case errors.Is(err, pageservice.ErrCorrupt):
		return fmt.Errorf("%s: %w", path, err)
	case err != nil:
		return damaged("%s: %v", path, err)
	case sum != r.Sum, h.cluster != cluster, h.index != r.Index, h.chain != r.Chain, h.state != r.State:
		return damaged("%s is another snapshot than the one that etcd names: it is of cluster %q at index %d", path, h.cluster, h.index)
	}
	return nil
}

// formerAge is how much older than the snapshots in use one of another cluster is when it is removed. While pages are being moved, two hosts may believe for some
// seconds that theirs are in use; this is longer than that, and than clocks of hosts differ.
const formerAge = 24 * time.Hour

// removeSnapshots removes this cluster's snapshots up to an index, except for those that are kept, and those of clusters that were used before: a log that
// pages are moved back to is begun anew.
func removeSnapshots(dir, cluster string, upTo uint64, keep []reference) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var former time.Time // snapshots of other clusters from before then are of no use
	for _, r := range keep {
		info, err := os.Stat(filepath.Join(dir, r.File))
		if err != nil {
			former = time.Time{} // the log can be read without it, or the follower says that it cannot
			break
		}
		if at := info.ModTime().Add(-formerAge); former.IsZero() || at.Before(former) {
			former = at
		}
	}
	var errs []error
	for _, e := range entries {
		of, index, ok := snapshotOf(e.Name())
		needless := ok && of == cluster && index <= upTo && !slices.ContainsFunc(keep, func(r reference) bool { return r.File == e.Name() })
		if ok && of != cluster {
			info, err := e.Info()
			needless = err == nil && info.ModTime().Before(former)
		}
		if needless {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// snapshotOf returns what the name of a snapshot says, also of one that was not finished.
func snapshotOf(name string) (cluster string, index uint64, ok bool) {
	cluster, rest, _ := strings.Cut(name, "-")
	digits, _, ok := strings.Cut(rest, "-")
	index, err := strconv.ParseUint(digits, 10, 64)
	return cluster, index, ok && err == nil && len(digits) == 20
}
