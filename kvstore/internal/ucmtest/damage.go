// Package ucmtest damages directories of blocks for tests, as disks, other programs and bad
// luck do.
package ucmtest

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var blockName = regexp.MustCompile(`^[0-9a-f]{32}$|\.kvcache\.safetensors$`)

// Blocks returns the paths of all blocks below dir.
func Blocks(t testing.TB, dir string) []string {
	t.Helper()
	var blocks []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != dir && (d.Name()[0] == '.' || d.Name() == "3fs-virt") {
			return fs.SkipDir
		}
		if err == nil && d.Type().IsRegular() && blockName.MatchString(d.Name()) {
			blocks = append(blocks, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return blocks
}

// Damage damages one block or several below dir.
func Damage(t testing.TB, dir string, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 5))
	blocks := Blocks(t, dir)
	for range 1 + rng.IntN(3) {
		victim, other := blocks[rng.IntN(len(blocks))], blocks[rng.IntN(len(blocks))]
		DamageOne(t, victim, other, seed)
	}
}

// DamageOne damages the block in one file, and perhaps the one in another file, too.
func DamageOne(t testing.TB, victim, other string, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 6))
	raw, err := os.ReadFile(victim)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) == 0 {
		return // cut short before
	}
	at := rng.IntN(len(raw))
	switch seed % 8 {
	case 0:
		raw[at] ^= 1 << rng.IntN(8)
	case 1:
		raw = raw[:at]
	case 2:
		raw = append(raw, 0)
	case 3:
		clear(raw[at : at+min(4096, len(raw)-at)])
		raw[at] ^= 0x55
	case 4: // the other block in its place
		if raw, err = os.ReadFile(other); err != nil {
			t.Fatal(err)
		}
	case 5: // swapped
		theirs, err := os.ReadFile(other)
		if err == nil {
			err = os.WriteFile(other, raw, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		raw = theirs
	case 6:
		rng.Shuffle(len(raw), func(i, j int) { raw[i], raw[j] = raw[j], raw[i] })
	case 7:
		raw = nil
	}
	if err := os.WriteFile(victim, raw, 0o644); err != nil {
		t.Fatal(err)
	}
}
