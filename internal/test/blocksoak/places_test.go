package blocksoak

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kv3fs/kv3fs/kvstore"
)

// kind is how a store keeps blocks.
type kind string

const (
	filesKind   kind = "a file for each block"
	segmentKind kind = "segments"
	pagesKind   kind = "a page file"
)

func kindOf(store string) kind {
	switch store {
	case "Segment":
		return segmentKind
	case "Pages":
		return pagesKind
	}
	return filesKind
}

// In segments and in page files, blocks are between a page that says whose the file is and,
// in segments, a page of keys. Each is followed by a head, which says what it is. All of
// these have this size, and so have the blocks here.
const pageBytes = 4 << 10

// places says where a store has its blocks, and what describes them.
type places struct {
	Kind   kind
	Root   string // a directory, or the page file
	Layout kvstore.Layout

	// Of a store with a file for each block.
	Blocks    []string // paths below Root, in the order of their numbers
	HeadBytes int64    // before the block in its file
	Side      string   // what the name of a side file has behind the block's, "" where there is none
	Sums      []string // directories of checksum logs, below Root

	// Of a page file, so that it can be repaired.
	Label     []byte
	SizeBytes int64
}

// large reports whether a file has many blocks.
func (p *places) large() bool { return p.Kind != filesKind }

// explore finds out where everything is, once a store has saved all blocks.
func (p *places) explore(o opening) error {
	switch p.Kind {
	case segmentKind:
		p.Root = filepath.Join(p.Root, "segment")
		return nil
	case pagesKind:
		p.Root = filepath.Join(p.Root, "pages")
		raw, err := os.ReadFile(p.Root)
		if err == nil {
			p.Label, p.SizeBytes = raw[:pageBytes], int64(len(raw))
		}
		return err
	}
	p.Blocks = make([]string, stressBlocks)
	err := filepath.WalkDir(p.Root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(p.Root, path)
		switch {
		case err != nil:
			return err
		case e.IsDir() && strings.HasPrefix(e.Name(), ".kv3fs-sums"):
			own, err := recorded(path, o)
			if err != nil {
				return err
			}
			if own {
				p.Sums = append(p.Sums, below)
			}
			return fs.SkipDir
		case e.Type().IsRegular():
			return p.recognise(path, below)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for n, path := range p.Blocks {
		if path == "" {
			return fmt.Errorf("no file below %s has block %d", p.Root, n)
		}
	}
	if len(p.Sums) == 0 {
		return fmt.Errorf("there are no checksum logs below %s", p.Root)
	}
	return p.findSide()
}

// recorded reports whether a directory has checksum logs with blocks of this chain.
func recorded(dir string, o opening) (bool, error) {
	all, err := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, name := range all {
		raw, failed := os.ReadFile(name)
		if err = errors.Join(err, failed); o.records(raw) {
			return true, err
		}
	}
	return false, err
}

// records reports whether a log has a record of some block of this chain's.
func (o opening) records(log []byte) bool {
	fingerprint := o.Config.Namespace.Fingerprint()
	for n := range stressBlocks {
		key := o.key(n)
		if bytes.Contains(log, append(fingerprint[:], key[:]...)) {
			return true
		}
	}
	return false
}

// recognise notes which block a file has, by its bytes: that is the same for all stores.
func (p *places) recognise(path, below string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	first := make([]byte, 64)
	for n := range p.Blocks {
		if p.Blocks[n] != "" {
			continue
		}
		variantOf(n, 0, 0).Fill(first)
		if at := bytes.Index(raw, first); at >= 0 {
			p.Blocks[n], p.HeadBytes = below, int64(at)
			return nil
		}
	}
	return nil
}

func (p *places) findSide() error {
	path := p.block(0)
	all, err := filepath.Glob(path + "?*")
	switch {
	case err != nil:
		return err
	case len(all) > 1:
		return fmt.Errorf("beside %s there are %v", path, all)
	case len(all) == 1:
		p.Side = strings.TrimPrefix(all[0], path)
	}
	return nil
}

// open opens a chain. What is refused, because the part that identifies it was damaged, is
// repaired, as an operator does it.
func (p *places) open(o opening, r *report) (chain, error) {
	r.Opened++
	for range 20 { // another process may damage it again
		c, err := o.open()
		if err == nil || !p.large() && r.unlessRemoved(err) != nil {
			return c, err
		}
		if !p.large() {
			continue
		}
		r.Refused++
		if failed := p.repair(); failed != nil {
			return c, errors.Join(err, failed)
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
func (p *places) block(n int) string { return filepath.Join(p.Root, p.Blocks[n]) }

// files returns the paths of the segments, of the page file, or of the checksum logs.
func (p *places) files() (all []string, err error) {
	switch p.Kind {
	case segmentKind:
		pattern := filepath.Join(p.Root, "segment-*")
		all, err = filepath.Glob(pattern)
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("no file is %s", pattern)
		}
	case pagesKind:
		return []string{p.Root}, nil
	default:
		for _, dir := range p.Sums {
			logs, failed := filepath.Glob(filepath.Join(p.Root, dir, "*.log"))
			all, err = append(all, logs...), errors.Join(err, failed)
		}
	}
	return all, err
}
