package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// budget returns how many blocks may be written, and announces it. Without MaxBlocks it is
// what half the free space holds: the other half is left to other users of the disk. With
// it, a trace that is known to need more space than there is is refused.
func (r *replay) budget() (blocks int64, err error) {
	free, err := freeBytes(r.dir)
	if err != nil {
		return 0, err
	}
	perBlock := r.o.spaceOfBlock()
	blocks, why := r.o.MaxBlocks, "--max-blocks"
	if blocks == 0 {
		blocks, why = free/2/perBlock, "half of it; --max-blocks changes that"
		if blocks == 0 {
			return 0, fmt.Errorf("%s has %s free, too little for one block of %s on %d ranks; make room, or choose smaller blocks or --max-blocks",
				r.o.Mount, measure.SizeText(free), measure.SizeText(r.o.BlockBytes), r.o.Ranks)
		}
	}
	most := blocks
	if n := r.o.DistinctBlocks; n > 0 {
		if n <= most {
			most, why = n, "the trace has no more"
		}
		// Earlier replays may have left some of them.
		if need := (most - storedBlocks(r.dir, r.o.BlockBytes)) * perBlock; need > free {
			return 0, fmt.Errorf("the replay would write %s blocks, %s, to %s, which has %s free; make room, or choose smaller blocks or --max-blocks",
				countText(most), measure.SizeText(need), r.dir, measure.SizeText(free))
		}
	}
	most = min(most, free/perBlock)
	r.o.Notice(fmt.Sprintf("will write at most %s blocks, %s, to %s, which has %s free (%s)",
		countText(most), measure.SizeText(most*perBlock), r.dir, measure.SizeText(free), why))
	return blocks, nil
}

// spaceOfBlock returns what all ranks' slices of a block take. A file takes whole pages of
// 4 KiB on every common file system.
func (o ReplayOptions) spaceOfBlock() int64 {
	return (o.BlockBytes + 4095) &^ 4095 * int64(o.Ranks)
}

// storedBlocks returns how many blocks earlier replays have left in dir.
func storedBlocks(dir string, blockBytes int64) (n int64) {
	suffix := strings.TrimPrefix(filepath.Base(blockPath(0, 0, blockBytes)), fmt.Sprintf("%016x", 0))
	shards, _ := os.ReadDir(dir) // none, if it cannot be read
	for _, shard := range shards {
		if shard.Name() == tempDir {
			continue
		}
		files, _ := os.ReadDir(filepath.Join(dir, shard.Name()))
		for _, f := range files {
			if strings.HasSuffix(f.Name(), suffix) {
				n++
			}
		}
	}
	return n
}

// freeBytes returns what may be written below dir.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	unit := st.Frsize
	if unit == 0 {
		unit = st.Bsize
	}
	return int64(st.Bavail) * unit, nil
}
