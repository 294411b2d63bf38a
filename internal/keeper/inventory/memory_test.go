package inventory_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// A million files in ten thousand directories take less than 100 MiB, with their heat and
// while candidates are chosen. KV3FS_SOAK_FILES says how many files there are.
func TestMemory(t *testing.T) {
	files := 100_000
	if text := os.Getenv("KV3FS_SOAK_FILES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		files = n
	}
	memory := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := memory()
	v := open(t, t.TempDir())
	root, own := v.KeyOf(v.Root()), v.Root().Bytes()
	dir := root
	for i := range files {
		if i%100 == 0 {
			dir = inventory.Key{Dev: root.Dev, Ino: uint64(1<<40 + i)}
			v.Created(dir, root, fmt.Sprintf("%06x", i), true)
		}
		k := inventory.Key{Dev: root.Dev, Ino: uint64(1<<50 + 7*i)}
		v.Created(k, dir, fmt.Sprintf("%032x", i), false)
		v.Settle(k, 0, 2048)
	}
	var heats []inventory.Heat
	v.Heat(func(part []inventory.Heat) error {
		heats = append(heats, part...)
		return nil
	})
	v.SetHeat(heats)
	heats = nil
	began := time.Now()
	chosen := v.Candidates(inventory.Query{Top: v.Root(), Most: 32 << 10, Rank: func(lastUse uint32, _ uint8) int64 { return int64(lastUse) }})
	took := time.Since(began)
	taken := memory() - before
	t.Logf("%d files: %.1f MiB, %.0f bytes each; a pass over them took %v", files, float64(taken)/(1<<20), float64(taken)/float64(files), took.Round(time.Millisecond))
	if limit := int64(100<<20) * int64(files) / 1_000_000; taken > limit {
		t.Errorf("%d files take %d bytes of memory; want at most %d", files, taken, limit)
	}
	if len(chosen) != 32<<10 {
		t.Errorf("%d candidates; want %d", len(chosen), 32<<10)
	}
	if b, n := v.Root().Bytes()-own, v.Root().Files(); b != int64(files)<<20 || n != int64(files) {
		t.Errorf("%d files of %d bytes; want %d of %d", n, b, files, int64(files)<<20)
	}
}
