package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/zeebo/xxh3"
)

// However the superblock is damaged, the blocks are there, and it is whole afterwards.
func TestSuperblockIsRepaired(t *testing.T) {
	o := options(t.TempDir(), small, 3, 4)
	s := open(t, o)
	save(t, s, keysOf(0, 6)...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(o.Dir, superName)
	good, err := os.ReadFile(path)
	if err != nil || len(good) != superCopies*pageBytes {
		t.Fatal(len(good), err)
	}
	damage := map[string][]byte{
		"empty": {}, "cut short": good[:pageBytes+100], "of 0.1.0": good[:pageBytes],
		"zeros": make([]byte, len(good)), "of others": bytes.Repeat([]byte("?"), len(good)), "gone": nil,
	}
	for name, raw := range damage {
		t.Run(name, func(t *testing.T) { repairs(t, o, raw, good) })
	}
	t.Run("any byte", func(t *testing.T) {
		step := 97
		if testing.Short() {
			step = 977
		}
		for at := 0; at < pageBytes; at += step {
			one, both := bytes.Clone(good), bytes.Clone(good)
			one[at] ^= 1
			both[at] ^= 0x40
			both[pageBytes+at] ^= 0x40
			repairs(t, o, one, good)
			repairs(t, o, both, good)
			if t.Failed() {
				t.Fatal("byte", at)
			}
		}
	})
}

// repairs opens a directory whose superblock is this, or gone.
func repairs(t *testing.T, o Options, raw, good []byte) {
	t.Helper()
	path := filepath.Join(o.Dir, superName)
	err := os.WriteFile(path, raw, 0o644)
	if raw == nil {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, o)
	loads(t, s, keysOf(0, 6)...)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, good) {
		t.Errorf("it is not repaired: %d bytes, %v", len(now), err)
	}
}

// What cannot be repaired is refused, and nothing is changed.
func TestSuperblockIsRefused(t *testing.T) {
	resum := func(page []byte) {
		binary.LittleEndian.PutUint64(page[ownSumAt:], xxh3.Hash(page[:ownSumAt]))
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, o Options, super []byte)
		words  string
	}{
		"a later version": {func(t *testing.T, o Options, super []byte) {
			super[8] = version + 1
			resum(super[:pageBytes])
			put(t, filepath.Join(o.Dir, superName), 0, super)
		}, "of version 2"},
		"no header is left": {func(t *testing.T, o Options, super []byte) {
			put(t, filepath.Join(o.Dir, superName), 0, make([]byte, len(super)))
			for n := range uint32(3) {
				put(t, filepath.Join(o.Dir, segmentName(n)), 0, make([]byte, pageBytes))
			}
		}, "empty the directory"},
		"headers disagree": {func(t *testing.T, o Options, super []byte) {
			put(t, filepath.Join(o.Dir, superName), 0, make([]byte, len(super)))
			for n := range uint32(3) {
				h := record{number: n, layout: small, segmentBytes: int64(n+9) * pageBytes}
				put(t, filepath.Join(o.Dir, segmentName(n)), 0, h.encode(headerMagic))
			}
		}, "disagree"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t.TempDir(), small, 3, 4)
			s := open(t, o)
			save(t, s, keysOf(0, 6)...)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(o.Dir, superName)
			super, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			c.damage(t, o, super)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			refused(t, o, superName, c.words)
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
				t.Errorf("it was changed: %v", err)
			}
			if _, err := os.Stat(filepath.Join(o.Dir, newSuperName)); !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		})
	}
}
