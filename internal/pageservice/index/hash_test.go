package index

import (
	"hash/fnv"
	"strings"
	"testing"
)

// The log contains these hashes, so they must not change.
func TestHashesAreFNV(t *testing.T) {
	keys := []string{"a", "b", "c", "d", "", "long", strings.Repeat("k", 64), "x", "y", "zz", "z"}
	for from := range keys {
		for i, got := range hashKeys(nil, keys[from:]) {
			h := fnv.New64a()
			_, _ = h.Write([]byte(keys[from+i]))
			if got != h.Sum64() || hashKey(keys[from+i]) != got {
				t.Fatalf("%q: %x, want %x", keys[from+i], got, h.Sum64())
			}
		}
	}
}
