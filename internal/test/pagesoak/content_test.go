package pagesoak

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
)

// contentSeed returns the seed of the bytes of a page: a hash of its owner.
func contentSeed(key string, rank int) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", rank, key)
	return h.Sum64()
}

// word returns the i-th word of content, which differs for each i and seed.
func word(seed, i uint64) uint64 {
	v := seed + i*0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	return v ^ v>>27
}

// fill writes the content of a key's page.
func fill(page []byte, key string, rank int) {
	seed := contentSeed(key, rank)
	for i := 0; i < len(page); i += 8 {
		binary.LittleEndian.PutUint64(page[i:], word(seed, uint64(i)))
	}
}

// check checks every byte of a page.
func check(page []byte, key string, rank int) error {
	seed := contentSeed(key, rank)
	for i := 0; i < len(page); i += 8 {
		if got := binary.LittleEndian.Uint64(page[i:]); got != word(seed, uint64(i)) {
			return fmt.Errorf("byte %d of the page of %.12s on rank %d belongs to another: %x", i, key, rank, got)
		}
	}
	return nil
}

func TestCheckNotices(t *testing.T) {
	mine, other := make([]byte, pageBytes), make([]byte, pageBytes)
	fill(mine, "key", 0)
	if err := check(mine, "key", 0); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func() (key string, rank int){
		"another key":      func() (string, int) { fill(other, "other", 0); return "key", 0 },
		"another rank":     func() (string, int) { fill(other, "key", 1); return "key", 0 },
		"nothing":          func() (string, int) { clear(other); return "key", 0 },
		"half of another":  func() (string, int) { fill(other, "other", 0); copy(other, mine[:pageBytes/2]); return "key", 0 },
		"one bit":          func() (string, int) { copy(other, mine); other[pageBytes-1] ^= 1; return "key", 0 },
		"the wrong offset": func() (string, int) { copy(other, mine[8:]); copy(other[pageBytes-8:], mine); return "key", 0 },
	} {
		key, rank := spoil()
		if err := check(other, key, rank); err == nil || !strings.Contains(err.Error(), "belongs to another") {
			t.Errorf("%s was not noticed: %v", name, err)
		}
	}
}
