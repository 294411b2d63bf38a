package blocksoak

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
)

const (
	flipBlocks  = 32   // at once, a byte of each shard
	flipIndexes = 512  // bytes at once
	lateRecords = 1024 // of a log are damaged: earlier ones have been replaced, mostly

	// recordBytes are those of a record in a log, or what is used of a head.
	recordBytes = 64 + 8*stressShards

	mostPiece = 6000
)

// vandal damages the files of a store that several processes may be using.
type vandal struct {
	places
	opening opening
	rng     *rand.Rand
	old     []piece // what was there once
}

// piece is a part of a file, or a whole file.
type piece struct {
	name  string
	off   int64
	raw   []byte
	whole bool
}

// flipData flips a byte in each shard of some blocks, and returns how many it flipped.
func (v *vandal) flipData() (flipped int, err error) {
	for range flipBlocks {
		var name string
		off := v.HeadBytes
		if v.large() {
			if name, off, err = v.anySlot(); err != nil {
				return flipped, err
			}
		} else {
			name = v.block(v.rng.IntN(stressBlocks))
		}
		err := v.edit(name, func(f *os.File, _ int64) error {
			for at := range v.Layout.Shards() {
				shard := off + int64(at)*v.Layout.ShardBytes
				n, err := v.flip(f, shard, shard+v.rng.Int64N(v.Layout.ShardBytes))
				flipped += n
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return flipped, err
		}
	}
	return flipped, nil
}

// anySlot returns where some block may be.
func (v *vandal) anySlot() (name string, off int64, err error) {
	all, err := v.files()
	if err != nil || len(all) == 0 {
		return "", 0, err
	}
	name = v.pick(all)
	err = v.edit(name, func(f *os.File, sizeBytes int64) error {
		off, _ = v.slot(f, sizeBytes)
		return nil
	})
	return name, off, err
}

// slot returns where a block is in a segment or page file, at random.
func (v *vandal) slot(f *os.File, sizeBytes int64) (off int64, ok bool) {
	if v.Kind == segmentKind {
		sizeBytes -= pageBytes
	}
	n := (sizeBytes - pageBytes) / (2 * pageBytes)
	if n <= 0 {
		return 0, false
	}
	for range 8 { // some were never written
		if off = pageBytes + v.rng.Int64N(n)*2*pageBytes; written(f, off) {
			break
		}
	}
	return off, true
}

// written reports whether anything was ever written at the beginning of a part of a file.
func written(f *os.File, begin int64) bool {
	first := make([]byte, 16)
	n, _ := f.ReadAt(first, begin)
	return len(bytes.Trim(first[:n], "\x00")) > 0
}

// flipIndex flips bytes of what describes blocks, and returns how many it flipped.
func (v *vandal) flipIndex() (flipped int, err error) {
	if (v.HeadBytes > 0 || v.Side != "") && v.rng.IntN(4) == 0 {
		return v.flipHeads()
	}
	all, err := v.files()
	if err != nil || len(all) == 0 {
		return 0, err
	}
	for _, name := range [2]string{v.pick(all), v.pick(all)} {
		err := v.edit(name, func(f *os.File, sizeBytes int64) error {
			for left := flipIndexes / 2; left > 0; {
				begin, partBytes, ok := v.indexPart(f, sizeBytes)
				if !ok {
					return nil
				}
				for range 1 << v.rng.IntN(6) { // a record is lost with the first: many are to be found out
					n, err := v.flip(f, begin, begin+v.rng.Int64N(partBytes))
					flipped += n
					left--
					if err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return flipped, err
		}
	}
	if v.Kind == segmentKind && v.rng.IntN(4) == 0 {
		err := v.edit(filepath.Join(v.Root, "segments.super"), func(f *os.File, sizeBytes int64) error {
			n, err := v.flip(f, 0, v.rng.Int64N(max(sizeBytes, 1)))
			flipped += n
			return err
		})
		if err != nil {
			return flipped, err
		}
	}
	return flipped, nil
}

// flipHeads flips bytes of what is before some blocks in their files, or of their side files,
// and returns how many it flipped.
func (v *vandal) flipHeads() (flipped int, err error) {
	for range flipBlocks {
		name, headBytes := v.block(v.rng.IntN(stressBlocks)), v.HeadBytes
		if headBytes == 0 || v.Side != "" && v.rng.IntN(2) == 0 {
			name, headBytes = name+v.Side, math.MaxInt64
		}
		err := v.edit(name, func(f *os.File, sizeBytes int64) error {
			most := min(sizeBytes, headBytes)
			if v.rng.IntN(8) > 0 {
				most = min(most, recordBytes) // the rest may be padding
			}
			for range flipIndexes / flipBlocks {
				n, err := v.flip(f, 0, v.rng.Int64N(most))
				flipped += n
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return flipped, err
		}
	}
	return flipped, nil
}

// indexPart chooses a part of a file that describes a block, or several.
func (v *vandal) indexPart(f *os.File, sizeBytes int64) (begin, partBytes int64, ok bool) {
	if !v.large() {
		late := min(sizeBytes, lateRecords*recordBytes)
		if late == 0 {
			return 0, 0, false
		}
		begin = sizeBytes - late + v.rng.Int64N(late)
		return begin, min(recordBytes, sizeBytes-begin), true
	}
	partBytes = recordBytes
	if v.rng.IntN(8) == 0 {
		partBytes = pageBytes
	}
	switch what := v.rng.IntN(500); {
	case what < 1: // the page that says whose the file is: it costs all blocks
		return 0, partBytes, true
	case what < 25 && v.Kind == segmentKind:
		return sizeBytes - pageBytes, pageBytes, true
	}
	begin, ok = v.slot(f, sizeBytes)
	return begin + pageBytes, partBytes, ok
}

// flip flips a bit, if something was ever written at the beginning of what it is in.
func (v *vandal) flip(f *os.File, begin, at int64) (flipped int, err error) {
	if !written(f, begin) {
		return 0, nil
	}
	one := make([]byte, 1)
	if _, err := f.ReadAt(one, at); err != nil {
		return 0, ignoreEOF(err)
	}
	one[0] ^= 1 << v.rng.IntN(8)
	_, err = f.WriteAt(one, at)
	return 1, err
}

// ruin does larger damage to a file.
func (v *vandal) ruin() error {
	all, err := v.files()
	if err != nil {
		return err
	}
	small, logs := !v.large(), all
	if small && v.rng.IntN(4) > 0 {
		if v.rng.IntN(4) == 0 {
			return v.exchange(logs)
		}
		all = nil
		for range 4 {
			name := v.block(v.rng.IntN(stressBlocks))
			if v.Side != "" && v.rng.IntN(2) == 0 {
				name += v.Side
			}
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return nil
	}
	name, other := v.pick(all), v.pick(all)
	kinds := 6
	if small || v.rng.IntN(20) == 0 {
		kinds = 11 // a whole segment or page file comes now and then
	}
	switch v.rng.IntN(kinds) {
	case 0, 1: // zeros, as a lost write leaves
		return v.edit(name, func(f *os.File, sizeBytes int64) error {
			off, n := v.part(sizeBytes)
			_, err := f.WriteAt(make([]byte, n), off)
			return err
		})
	case 2: // a piece of itself elsewhere
		return v.edit(name, func(f *os.File, sizeBytes int64) error {
			from, n := v.part(sizeBytes)
			return copyPiece(f, from, v.rng.Int64N(sizeBytes-n+1), n)
		})
	case 3: // the same, as records and blocks are
		return v.edit(name, func(f *os.File, sizeBytes int64) error {
			from, to, n := v.records(sizeBytes)
			return copyPiece(f, from, to, n)
		})
	case 4: // a version of it is kept
		return v.keep(name, small)
	case 5: // and put back later
		return v.putBack()
	case 6: // cut off
		return v.edit(name, func(f *os.File, sizeBytes int64) error { return f.Truncate(v.rng.Int64N(sizeBytes)) })
	case 7: // gone
		return ignoreGone(os.Remove(name))
	case 8: // exchanged with another
		return v.swap(name, other)
	case 9: // overwritten by another
		raw, err := os.ReadFile(other)
		if err != nil {
			return ignoreGone(err)
		}
		return overwrite(piece{name: name, raw: raw, whole: true})
	default:
		if small && v.rng.IntN(8) == 0 { // all logs at once
			for _, log := range logs {
				if err := ignoreGone(os.Remove(log)); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// swap exchanges two files.
func (v *vandal) swap(name, other string) error {
	aside := filepath.Join(filepath.Dir(v.Root), fmt.Sprintf("aside-%016x", v.rng.Uint64()))
	return ignoreGone(errors.Join(os.Rename(name, aside), os.Rename(other, name), os.Rename(aside, other)))
}

// exchange exchanges two blocks together with their records.
func (v *vandal) exchange(logs []string) error {
	const keyAt = 32
	one, other := v.rng.IntN(stressBlocks), v.rng.IntN(stressBlocks)
	for _, name := range logs {
		err := v.edit(name, func(f *os.File, sizeBytes int64) error {
			raw := make([]byte, sizeBytes)
			n, err := f.ReadAt(raw, 0)
			keyOf, keyOfOther := v.opening.key(one), v.opening.key(other)
			a, b := bytes.LastIndex(raw[:n], keyOf[:])-keyAt, bytes.LastIndex(raw[:n], keyOfOther[:])-keyAt
			if a < 0 || b < 0 || max(a, b)+recordBytes > n {
				return ignoreEOF(err)
			}
			_, err = f.WriteAt(raw[a:a+recordBytes], int64(b))
			_, failed := f.WriteAt(raw[b:b+recordBytes], int64(a))
			return errors.Join(err, failed)
		})
		if err != nil {
			return err
		}
	}
	err := v.swap(v.block(one), v.block(other))
	if v.Side != "" && v.rng.IntN(2) == 0 {
		err = errors.Join(err, v.swap(v.block(one)+v.Side, v.block(other)+v.Side))
	}
	return err
}

// keep keeps a part of a file, or all of a small one.
func (v *vandal) keep(name string, whole bool) error {
	const most = 8
	one := piece{name: name, whole: whole || v.rng.IntN(4) == 0 && v.Kind == segmentKind}
	err := v.edit(name, func(f *os.File, sizeBytes int64) error {
		n := sizeBytes
		if !one.whole {
			one.off = v.rng.Int64N(sizeBytes) &^ (pageBytes - 1)
			n = min(sizeBytes-one.off, 16*pageBytes)
		}
		one.raw = make([]byte, n)
		read, err := f.ReadAt(one.raw, one.off)
		one.raw = one.raw[:read]
		return ignoreEOF(err)
	})
	if err != nil || one.raw == nil {
		return err
	}
	if len(v.old) < most {
		v.old = append(v.old, one)
	} else {
		v.old[v.rng.IntN(most)] = one
	}
	return nil
}

// putBack puts an old version in its place again.
func (v *vandal) putBack() error {
	if len(v.old) == 0 {
		return nil
	}
	return overwrite(v.old[v.rng.IntN(len(v.old))])
}

// overwrite writes into a file, and makes it where it was removed, with the attributes that
// the store's have.
func overwrite(p piece) error {
	f, err := os.OpenFile(p.name, os.O_RDWR|os.O_CREATE, 0o644|os.ModeSticky)
	if err != nil {
		return ignoreGone(err) // its directory
	}
	defer f.Close()
	if p.whole {
		if err := f.Truncate(int64(len(p.raw))); err != nil {
			return err
		}
	}
	_, err = f.WriteAt(p.raw, p.off)
	return err
}

// edit opens a file that is there and not empty.
func (v *vandal) edit(name string, do func(f *os.File, sizeBytes int64) error) error {
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	return do(f, info.Size())
}

// part chooses a piece of a file.
func (v *vandal) part(sizeBytes int64) (off, n int64) {
	n = min(sizeBytes, 1+v.rng.Int64N(mostPiece))
	return v.rng.Int64N(sizeBytes - n + 1), n
}

// records chooses some records of a log, or blocks of a large file, and a place of others.
func (v *vandal) records(sizeBytes int64) (from, to, n int64) {
	begin, unit := int64(0), min(int64(recordBytes), sizeBytes)
	if v.large() {
		begin, unit = pageBytes, min(2*pageBytes, sizeBytes-pageBytes)
	}
	if unit <= 0 {
		return 0, 0, 0
	}
	count := (sizeBytes - begin) / unit
	some := min(count, 1+v.rng.Int64N(4))
	return begin + v.rng.Int64N(count-some+1)*unit, begin + v.rng.Int64N(count-some+1)*unit, some * unit
}

func (v *vandal) pick(names []string) string { return names[v.rng.IntN(len(names))] }

// copyPiece copies n bytes of a file to another place in it, as far as they go.
func copyPiece(f *os.File, from, to, n int64) error {
	b := make([]byte, n)
	got, err := f.ReadAt(b, from)
	if err != nil && err != io.EOF {
		return err
	}
	_, err = f.WriteAt(b[:got], to)
	return err
}

// Another process may have removed a file, or cut it short.

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func ignoreEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}
