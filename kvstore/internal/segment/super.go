package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// superCopies is how many copies of its page the file of the superblock has. Version 0.1.0
// wrote one, and reads the first.
const superCopies = 2

// superblock reads the geometry of the directory, or decides it for a new one: segmentBytes
// is the size that the caller wants, 0 for none; then choose decides.
func (d *directory) superblock(l kv.Layout, segmentBytes int64, choose func() int64) (geometry, error) {
	super, err := d.readSuper()
	if err != nil {
		return geometry{}, err
	}
	if d.isNew {
		if segmentBytes == 0 {
			segmentBytes = choose()
		}
		return newGeometry(l, segmentBytes)
	}
	if super.layout != l {
		return geometry{}, fmt.Errorf("segment store: %s is for blocks of %d bytes in shards of %d, and blocks of %d in shards of %d were asked for; give them another directory, or empty this one",
			d.path, super.layout.BlockBytes, super.layout.ShardBytes, l.BlockBytes, l.ShardBytes)
	}
	if segmentBytes != 0 && segmentBytes != super.segmentBytes {
		return geometry{}, fmt.Errorf("segment store: %s has segments of %d bytes, and %d were asked for; leave their size out, or empty the directory",
			d.path, super.segmentBytes, segmentBytes)
	}
	return newGeometry(l, super.segmentBytes)
}

// readSuper returns the superblock. Where it is damaged or missing, it is repaired from its
// other copy, or from the segments' headers, which say the same.
func (d *directory) readSuper() (super record, err error) {
	path := filepath.Join(d.path, superName)
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !kv.IsUnreadable(err) {
		return record{}, fmt.Errorf("segment store: %w", err)
	}
	numbers, listing := numbersIn(d.path)
	if listing != nil {
		return record{}, listing
	}
	if errors.Is(err, fs.ErrNotExist) && len(numbers) == 0 {
		d.isNew = true
		return record{}, nil
	}
	damage, good := err, 0
	for n := range superCopies {
		var one record
		switch err := one.decode(superMagic, raw[min(n*pageBytes, len(raw)):]); {
		case err == nil:
			super = one
			good++
		case errors.Is(err, errVersion):
			return record{}, fmt.Errorf("segment store: %s: %w", path, err)
		case damage == nil:
			damage = err
		}
	}
	if good == superCopies {
		return super, nil
	}
	if good == 0 {
		if super, err = d.fromHeaders(numbers); err != nil {
			return record{}, fmt.Errorf("segment store: %s: %w, and %w; empty the directory to begin anew", path, damage, err)
		}
	}
	if len(raw) != pageBytes || good == 0 { // one good page is what 0.1.0 wrote
		d.damage = damage
	}
	return super, d.writeSuper(super)
}

// fromHeaders returns the superblock that suits the segments.
func (d *directory) fromHeaders(numbers []uint32) (super record, err error) {
	found := false
	page := make([]byte, pageBytes)
	for _, number := range numbers {
		f, err := os.Open(d.file(number))
		if err != nil {
			continue
		}
		_, err = f.ReadAt(page, 0)
		_ = f.Close() // it was only read
		var h record
		if err != nil || h.decode(headerMagic, page) != nil || h.number != number {
			continue
		}
		one := record{layout: h.layout, segmentBytes: h.segmentBytes}
		if found && one != super {
			return record{}, errors.New("the segments' headers disagree")
		}
		super, found = one, true
	}
	if !found {
		return record{}, errors.New("no segment has a header")
	}
	return super, nil
}

// initialise makes an empty directory ours.
func (d *directory) initialise(g geometry) error {
	return d.writeSuper(record{layout: g.layout, segmentBytes: g.segmentBytes})
}

// writeSuper writes the superblock all at once, by a rename, so that a crash leaves the
// directory as it was or with a whole superblock.
func (d *directory) writeSuper(super record) error {
	path := filepath.Join(d.path, newSuperName)
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("segment store: %w", err)
	}
	for range superCopies {
		_, failed := f.Write(super.encode(superMagic))
		err = errors.Join(err, failed)
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path, filepath.Join(d.path, superName))
	}
	if err == nil {
		err = d.sync()
	}
	if err != nil {
		return fmt.Errorf("segment store: %w", err)
	}
	return nil
}
