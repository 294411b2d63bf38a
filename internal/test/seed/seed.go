// Package seed gives tests their random seeds, so that a run can be repeated.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// New returns KV3FS_SEED, or else a random seed, and logs it. It does not determine how
// threads and processes take turns, so a seed does not repeat every run exactly.
func New(t testing.TB) uint64 {
	t.Helper()
	return Or(t, rand.Uint64())
}

// Or returns KV3FS_SEED, or else the given seed, and logs it.
func Or(t testing.TB, n uint64) uint64 {
	t.Helper()
	if text := os.Getenv("KV3FS_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("KV3FS_SEED: %v", err)
		}
	}
	t.Logf("KV3FS_SEED=%d", n)
	return n
}
