package rtpfiles

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

// corruptionsEnv is how many corruptions TestCorruptions tries of each store. The nightly run
// and scripts/test set it to 100000.
const corruptionsEnv = "KV3FS_CORRUPTIONS"

// TestCorruptions damages files that the stores have written, which have checksums, and loads
// them: a wrong byte fails the test. Damage that is found is a miss, and the next save
// stores the block again.
func TestCorruptions(t *testing.T) {
	most := 640
	if s := os.Getenv(corruptionsEnv); s != "" {
		var err error
		if most, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	first := seed.New(t)
	each(t, func(t *testing.T, name, root string, path func(first, n int) string) {
		const blocks = 64
		s := openTest(t, name, Options{Root: root, Layout: kv.Layout{BlockBytes: 2048, ShardBytes: 1024}, OpenFiles: 1})
		save(t, s, 0, blocks)
		missed := 0
		for n := 0; n < most; n += blocks / 2 {
			for k := range blocks / 2 {
				i := first + uint64(n+k)
				victim, other := filepath.Join(root, path(int(i%blocks), 1)), filepath.Join(root, path(int(i/8%blocks), 1))
				if _, err := os.Stat(other); err != nil {
					other = victim
				}
				if _, err := os.Stat(victim); err == nil {
					ucmtest.DamageOne(t, victim, other, i)
				}
			}
			again := 0
			for _, hit := range load(t, s, 0, blocks) { // fails at a wrong byte
				if !hit {
					again++
				}
			}
			missed += again
			save(t, s, 0, blocks)
		}
		hits(t, s, 0, blocks, true)
		stats := s.Stats()
		if missed == 0 || stats.CorruptBlocks == 0 || stats.UnverifiedShards > 0 {
			t.Errorf("%d blocks were missed, %d found damaged, and %d shards were not checked", missed, stats.CorruptBlocks, stats.UnverifiedShards)
		}
		t.Logf("%d corruptions: %d blocks missed, 0 wrong bytes", most, missed)
	})
}
