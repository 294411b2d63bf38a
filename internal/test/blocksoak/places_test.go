package blocksoak

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kv3fs/kv3fs/kvstore"
)

// What places there are.
const (
	posixKind   = "a file for each block, in 4096 directories"
	ds3fsKind   = "a file for each block, in 256 directories"
	segmentKind = "segments"
	pagesKind   = "a page file"
)

// In segments and in page files, blocks are between a page that says whose the file is and,
// in segments, a page of keys. Each is followed by a head, which says what it is. All of
// these have this size, and so have the blocks here.
const pageBytes = 4 << 10

// places says where a store has its blocks, and what describes them.
type places struct {
	Kind   string
	Root   string // a directory, or the page file
	Layout kvstore.Layout

	// Of a page file, so that it can be repaired.
	Label     []byte
	SizeBytes int64
}

// large reports whether a file has many blocks.
func (p *places) large() bool { return p.Kind == segmentKind || p.Kind == pagesKind }

// remember notes what a repair needs.
func (p *places) remember() error {
	if p.Kind != pagesKind {
		return nil
	}
	raw, err := os.ReadFile(p.Root)
	if err != nil {
		return err
	}
	p.Label, p.SizeBytes = raw[:pageBytes], int64(len(raw))
	return nil
}

// open opens a chain. What is refused, because the part that identifies it was damaged, is
// repaired, as an operator does it.
func (p *places) open(o opening, r *report) (*kvstore.Store, error) {
	r.Opened++
	for range 20 { // another process may damage it again
		s, err := o.open()
		if err == nil || !p.large() && r.unlessRemoved(err) != nil {
			return s, err
		}
		if !p.large() {
			continue
		}
		r.Refused++
		if failed := p.repair(); failed != nil {
			return nil, errors.Join(err, failed)
		}
	}
	return o.open()
}

func (p *places) repair() error {
	if p.Kind == segmentKind {
		all, err := p.files()
		for _, name := range all {
			err = errors.Join(err, os.Remove(name))
		}
		return errors.Join(err, os.Remove(filepath.Join(p.Root, "segments.super")))
	}
	f, err := os.OpenFile(p.Root, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return err
	} else if info.Size() < p.SizeBytes {
		if err := f.Truncate(p.SizeBytes); err != nil {
			return err
		}
	}
	_, err = f.WriteAt(p.Label, 0)
	return err
}

// block returns the path of a block that has a file of its own.
func (p *places) block(n int) string {
	id := key(n).String()
	if p.Kind == posixKind {
		return filepath.Join(p.Root, id[:3], id)
	}
	return filepath.Join(p.Root, id[:2], id)
}

// sums is the directory of the checksum logs.
func (p *places) sums() string { return filepath.Join(p.Root, ".kv3fs-sums") }

// files returns the paths of the segments, of the page file, or of the checksum logs.
func (p *places) files() ([]string, error) {
	pattern := p.Root
	switch p.Kind {
	case segmentKind:
		pattern = filepath.Join(p.Root, "segment-*")
	case posixKind, ds3fsKind:
		pattern = filepath.Join(p.sums(), "*.log")
	}
	all, err := filepath.Glob(pattern)
	if err == nil && len(all) == 0 && p.Kind == segmentKind {
		err = fmt.Errorf("no file is %s", pattern)
	}
	return all, err
}
