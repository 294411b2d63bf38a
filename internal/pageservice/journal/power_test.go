package journal

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Power that fails at any step of a commit is no damage, whichever sectors have reached the
// disk by then: nothing is refused, and no acknowledged record said to be missing.
func TestLossOfPowerIsNoDamage(t *testing.T) {
	const sector = 512
	pageBytes := os.Getpagesize()
	dir, trial := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, FileName)
	rng := rand.New(rand.NewPCG(1, 1))
	var all []string
	owner := pageservice.LogOwner{
		LiveBytes: func() int64 { return 3000 },
		Keep: func(rec []byte) [][]byte {
			if rec[0] < 'c' {
				return [][]byte{slices.Clone(rec)}
			}
			return nil
		},
	}
	j, _ := openFor(t, dir, Options{NoSync: true, SlackBytes: 3000}, owner)
	read := func() []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// some copies some of the sectors in which two files differ.
	some := func(to, from []byte, skip int) {
		for at := skip; at < len(from); at += sector {
			if rng.IntN(2) == 0 {
				copy(to[at:at+sector], from[at:at+sector])
			}
		}
	}
	try := func(step string, n int, file []byte, last ...string) {
		t.Helper()
		recs, missing, err := startOn(t, trial, file)
		if err != nil || missing || len(recs) > 0 && !slices.Contains(last, recs[len(recs)-1]) {
			t.Fatalf("commit %d, %s: %d records; %t, %v", n, step, len(recs), missing, err)
		}
	}
	before := read()
	for n := range 80 {
		rec := strings.Repeat(string(rune('a'+n%26)), 1+rng.IntN(12)*300) + string(rune('a'+n%25))
		if err := writeAll(j, rec); err != nil {
			t.Fatal(err)
		}
		all = append(all, rec)
		prev := rec
		if n > 0 {
			prev = all[n-1]
		}
		after := read()
		_, m := newestMeta(t, after)
		own := int(m.txid%2) * pageBytes // the meta page that this commit wrote
		other := pageBytes - own

		for range 2 {
			// Before the first sync: some of the pages, and perhaps not even the last mark.
			file := slices.Clone(before)
			if rng.IntN(4) > 0 {
				file = append(file, make([]byte, len(after)-len(file))...)
				some(file, after, 2*pageBytes)
			}
			if rng.IntN(2) == 0 {
				clear(file[own+pageBytes/2:][:markBytes])
			}
			try("before the first sync", n, file, prev)

			// Before the second: some of the meta page.
			file = slices.Clone(after)
			copy(file[:2*pageBytes], before[:2*pageBytes])
			written := slices.Clone(after[own : own+pageBytes])
			some(file[own:own+pageBytes], written, 0)
			try("before the second sync", n, file, prev, rec)

			// After it: all but the mark.
			file = slices.Clone(after)
			copy(file[other:other+pageBytes], before[other:other+pageBytes])
			try("before the mark", n, file, rec)
		}
		try("after the mark", n, after, rec)
		before = after
	}
}
