package rtpfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

// corruptionsEnv is how many corruptions TestCorruptions tries of each layout. The nightly run
// sets it to 100000.
const corruptionsEnv = "KV3FS_CORRUPTIONS"

// TestCorruptions damages files that the stores have written, which have checksums, and loads
// them: a wrong byte fails the test. Damage that is found is a miss, and the next save
// stores the block again.
func TestCorruptions(t *testing.T) {
	most := many(t, corruptionsEnv, 320)
	first := seed.New(t)
	for _, name := range []string{"RtpLlm", "Kvcm"} {
		for _, inFile := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s of %d", name, inFile), func(t *testing.T) { corrupt(t, name, inFile, most, first) })
		}
	}
}

func corrupt(t *testing.T, name string, inFile, most int, first uint64) {
	const blocks = 64
	root := t.TempDir()
	s := openTest(t, name, Options{Root: root, Layout: kv.Layout{BlockBytes: 512, ShardBytes: 256}, OpenFiles: 1, PackBlocks: inFile})
	if inFile > 1 {
		count(t, s, 0, blocks, 0) // no block begins a prompt but the first
	}
	var files []string
	for i := 0; i < blocks; i += inFile {
		files = append(files, filepath.Join(root, paths[name](i, inFile)))
	}
	missed, damaged := 0, 0
	cpu := processorSeconds()
	for damaged < most {
		save(t, s, 0, blocks)
		for k := 0; k < len(files) && damaged < most; k++ {
			i := first + uint64(damaged)
			victim, other := files[k], files[i/8%uint64(len(files))]
			if _, err := os.Stat(victim); err != nil {
				t.Fatal(err)
			}
			ucmtest.DamageOne(t, victim, other, i)
			damaged++
		}
		for _, hit := range load(t, s, 0, blocks) { // fails at a wrong byte
			if !hit {
				missed++
			}
		}
	}
	save(t, s, 0, blocks)
	hits(t, s, 0, blocks, true)
	stats := s.Stats()
	if missed < most/2 || stats.CorruptBlocks == 0 || stats.UnverifiedShards > 0 {
		t.Errorf("%d blocks were missed, %d found damaged, and %d shards were not checked", missed, stats.CorruptBlocks, stats.UnverifiedShards)
	}
	t.Logf("%d corruptions: %d blocks missed, 0 wrong bytes, in %.0f s of processor time", damaged, missed, processorSeconds()-cpu)
}

// processorSeconds returns how long the process has used processors.
func processorSeconds() float64 {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
