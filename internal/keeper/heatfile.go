package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// The heat file: what is remembered of uses. All numbers are little-endian.
//
//	magic, with the version           8 bytes
//	wall clock, seconds since 1970    8
//	root's inode                      8
//	bonus of a use, milliseconds      8
//	number of totals, of heats        4, 8
//	totals: directory's inode, bytes  16 each
//	heats: inode, age, uses           13 each
//	ghosts, as policy.Ghosts says     their length (4), and they
//	XXH3 of all before                8
//
// A file of version 2 has no ghosts. It is read, too.
const (
	heatName    = "keeper-heat"
	heatMagic   = "KV3HEAT\x03"
	heatMagic2  = "KV3HEAT\x02"
	heatHeader  = 8 + 8 + 8 + 8 + 4 + 8
	totalBytes  = 16
	heatBytes   = 13
	mostHeat    = 64 << 20 // files; more are no heat
	ghostsBytes = 4
	saveMostAge = 1<<31 - 1
)

// mostDowntime bounds what the wall clock says of how long a daemon was down.
const mostDowntime = 7 * 24 * time.Hour

var errHeat = errors.New("damaged heat file")

// heats is the content of a heat file.
type heats struct {
	wall   time.Time
	root   uint64
	bonus  time.Duration // that has proved best
	totals []total
	files  []inventory.Heat
	ghosts []byte // of a learner; nil: none are known
}

// total is what a directory with a limit took.
type total struct {
	ino   uint64
	bytes int64
}

// decodeHeat reads a heat file. Whatever the bytes are, it returns an error or what encode
// was given.
func decodeHeat(b []byte) (heats, error) {
	if len(b) < heatHeader+8 || string(b[:8]) != heatMagic && string(b[:8]) != heatMagic2 {
		return heats{}, fmt.Errorf("%w: no such file of this version", errHeat)
	}
	body, sum := b[:len(b)-8], binary.LittleEndian.Uint64(b[len(b)-8:])
	if xxh3.Hash(body) != sum {
		return heats{}, fmt.Errorf("%w: wrong checksum", errHeat)
	}
	h := heats{
		wall: time.Unix(int64(binary.LittleEndian.Uint64(b[8:])), 0),
		root: binary.LittleEndian.Uint64(b[16:]),
	}
	bonusMs := binary.LittleEndian.Uint64(b[24:])
	if bonusMs > uint64(forgetStep.Milliseconds()) {
		return heats{}, fmt.Errorf("%w: a use counts %d ms", errHeat, bonusMs)
	}
	h.bonus = time.Duration(bonusMs) * time.Millisecond
	totals, files := uint64(binary.LittleEndian.Uint32(b[32:])), binary.LittleEndian.Uint64(b[36:])
	rest := body[heatHeader:]
	size := totals*totalBytes + files*heatBytes
	if files > mostHeat || totals > uint64(len(rest)) || size > uint64(len(rest)) {
		return heats{}, fmt.Errorf("%w: %d totals and %d files in %d bytes", errHeat, totals, files, len(rest))
	}
	ghosts := rest[size:]
	if string(b[:8]) == heatMagic {
		if len(ghosts) < ghostsBytes || uint64(binary.LittleEndian.Uint32(ghosts)) != uint64(len(ghosts)-ghostsBytes) {
			return heats{}, fmt.Errorf("%w: what has left has another length", errHeat)
		}
		if ghosts = ghosts[ghostsBytes:]; len(ghosts) > 0 {
			h.ghosts = ghosts
		}
	} else if len(ghosts) > 0 {
		return heats{}, fmt.Errorf("%w: %d bytes too many", errHeat, len(ghosts))
	}
	for range totals {
		bytes := int64(binary.LittleEndian.Uint64(rest[8:]))
		if bytes < 0 {
			return heats{}, fmt.Errorf("%w: a total of %d bytes", errHeat, bytes)
		}
		h.totals = append(h.totals, total{binary.LittleEndian.Uint64(rest), bytes})
		rest = rest[totalBytes:]
	}
	h.files = make([]inventory.Heat, files)
	for i := range h.files {
		h.files[i] = inventory.Heat{Ino: binary.LittleEndian.Uint64(rest), Age: binary.LittleEndian.Uint32(rest[8:]), Uses: rest[12]}
		rest = rest[heatBytes:]
	}
	return h, nil
}

// encodeHeat writes a heat file; each gives it the files in parts, as many as it says.
func encodeHeat(w io.Writer, h heats, count uint64, each func(func([]inventory.Heat) error) error) error {
	sum := xxh3.New()
	to := io.MultiWriter(w, sum)
	b := append([]byte(nil), heatMagic...)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.wall.Unix()))
	b = binary.LittleEndian.AppendUint64(b, h.root)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.bonus.Milliseconds()))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.totals)))
	b = binary.LittleEndian.AppendUint64(b, count)
	for _, t := range h.totals {
		b = binary.LittleEndian.AppendUint64(b, t.ino)
		b = binary.LittleEndian.AppendUint64(b, uint64(t.bytes))
	}
	if _, err := to.Write(b); err != nil {
		return err
	}
	err := each(func(part []inventory.Heat) error {
		b = b[:0]
		for _, f := range part {
			if count == 0 {
				break // made since they were counted
			}
			count--
			b = binary.LittleEndian.AppendUint64(b, f.Ino)
			b = binary.LittleEndian.AppendUint32(b, f.Age)
			b = append(b, f.Uses)
		}
		_, err := to.Write(b)
		return err
	})
	if err != nil {
		return err
	}
	// Files were removed since they were counted: entries of no inode.
	for b = b[:0]; count > 0; count-- {
		b = append(b, make([]byte, heatBytes)...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.ghosts)))
	if _, err := to.Write(append(b, h.ghosts...)); err != nil {
		return err
	}
	_, err = w.Write(binary.LittleEndian.AppendUint64(nil, sum.Sum64()))
	return err
}

// saveHeat writes what is remembered of uses.
func (k *Keeper) saveHeat() error {
	h := heats{wall: time.Now(), root: k.inv.KeyOf(k.inv.Root()).Ino, bonus: min(k.learner.tuner.Bonus(), forgetStep)}
	ghosts, err := k.learner.ghosts.MarshalBinary()
	if err != nil {
		return fmt.Errorf("save %s: %w", heatName, err)
	}
	h.ghosts = ghosts
	for _, d := range k.limited() {
		h.totals = append(h.totals, total{k.inv.KeyOf(d).Ino, d.Bytes() + d.Believed()})
	}
	return replace(k.StateDir, heatName, func(w io.Writer) error {
		return encodeHeat(w, h, uint64(k.inv.HeatCount()), k.inv.Heat)
	})
}

// loadHeat gives files and totals back what was remembered, before the first scan. If that
// cannot be read there is none: files count as used when they were written.
func (k *Keeper) loadHeat() {
	removeUnfinished(k.StateDir, heatName)
	path := filepath.Join(k.StateDir, heatName)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var h heats
	if err == nil {
		h, err = decodeHeat(b)
	}
	if err == nil && h.root != k.inv.KeyOf(k.inv.Root()).Ino {
		err = errors.New("it is of another directory")
	}
	if err != nil {
		k.Log.Warn("what was known of the use of files is lost; their mtimes count instead", "file", path, "err", err)
		return
	}
	down := time.Since(h.wall)
	if down < 0 || down > mostDowntime {
		k.Log.Warn("the wall clock says that the daemon was down for an unlikely time", "down", down.Round(time.Second), "counted", min(max(down, 0), mostDowntime))
		down = min(max(down, 0), mostDowntime)
	}
	for i := range h.files {
		age := uint64(h.files[i].Age) + uint64(down/time.Second)
		h.files[i].Age = uint32(min(age, saveMostAge))
	}
	k.inv.SetHeat(h.files)
	k.learner.tuner.Start(h.bonus)
	if h.ghosts != nil {
		if err := k.learner.ghosts.UnmarshalBinary(h.ghosts); err != nil {
			k.Log.Warn("what was known of files that have left is lost; they count as new when they come back", "file", path, "err", err)
		}
	}
	for _, d := range k.limited() {
		for _, t := range h.totals {
			if t.ino == k.inv.KeyOf(d).Ino {
				d.Believe(t.bytes)
			}
		}
	}
}
