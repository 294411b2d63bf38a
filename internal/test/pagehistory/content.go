package pagehistory

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
)

// pageBytes is the size of a page.
const pageBytes = 4 << 10

// fill writes what the page of a key has: words that differ for each key and place.
func fill(page []byte, key string) {
	h := fnv.New64a()
	h.Write([]byte(key))
	for i, word := 0, h.Sum64(); i < len(page); i += 8 {
		word = word*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(page[i:], word)
	}
}

// verify returns an error unless every byte of a page is that of a key.
func verify(page []byte, key string) error {
	want := make([]byte, len(page))
	fill(want, key)
	for i := range page {
		if page[i] != want[i] {
			return fmt.Errorf("byte %d of a page that was located for key %q is of something else", i, key)
		}
	}
	return nil
}
