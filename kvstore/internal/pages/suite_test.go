package pages

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
)

func TestStore(t *testing.T) {
	for name, direct := range map[string]bool{"buffered": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			var services hosts
			storesuite.Run(t, storesuite.Subject{
				Versions: true,
				Open: func(t testing.TB, dir string, o storesuite.Options) kv.Store {
					s, err := Open(Options{
						URL: services.at(t, dir).url(), File: filepath.Join(dir, "pages"), DirectIO: direct,
						Layout: o.Layout, Namespace: o.Namespace,
						// Pages of writers that came second are quarantined for a while.
						CapacityBytes: int64(4*o.Blocks) * strideOf(o.Layout),
					})
					if err != nil {
						t.Fatal(err)
					}
					return s
				},
				Durable: true, Damage: damage, Verified: true, OneNamespace: true, Seeds: 12,
			})
		})
	}
}

// damage changes some of the file behind its label, near the beginning, where pages are
// in use.
func damage(t testing.TB, dir string, seed uint64) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "pages"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	label := make([]byte, labelBytes)
	if _, err := f.ReadAt(label, 0); err != nil {
		t.Fatal(err)
	}
	l, err := decodeLabel(label)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	used := make([]byte, 12*l.strideBytes)
	if _, err := f.ReadAt(used, labelBytes); err != nil {
		t.Fatal(err)
	}
	switch seed % 4 {
	case 0: // bits
		for range 1 + rng.IntN(4) {
			used[rng.IntN(len(used))] ^= 1 << rng.IntN(8)
		}
	case 1: // two pages are swapped
		a, b := rng.Int64N(6), 6+rng.Int64N(6)
		one := append([]byte(nil), used[a*l.strideBytes:(a+1)*l.strideBytes]...)
		copy(used[a*l.strideBytes:(a+1)*l.strideBytes], used[b*l.strideBytes:(b+1)*l.strideBytes])
		copy(used[b*l.strideBytes:], one)
	case 2: // disk blocks that were never written
		at := rng.IntN(len(used)/4096) * 4096
		clear(used[at:min(len(used), at+4096*(1+rng.IntN(3)))])
	case 3: // a record of one page behind the data of another
		a, b := rng.Int64N(6), 6+rng.Int64N(6)
		head := headAt(l.layout)
		copy(used[a*l.strideBytes+head:(a+1)*l.strideBytes], used[b*l.strideBytes+head:(b+1)*l.strideBytes])
	}
	if _, err := f.WriteAt(used, labelBytes); err != nil {
		t.Fatal(err)
	}
}
