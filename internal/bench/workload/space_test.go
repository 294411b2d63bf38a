package workload

import (
	"os"
	"path/filepath"
	"testing"
)

func TestStoredBlocks(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{
		blockPath(1, 0, 4096), blockPath(0x201, 0, 4096), blockPath(3, 0, 4096),
		blockPath(1, 1, 4096), blockPath(1, 0, 8192), // another rank, another size
		filepath.Join(tempDir, "a-b-c-d", "0-1"),
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if n := storedBlocks(dir, 4096); n != 3 {
		t.Errorf("%d blocks, want 3", n)
	}
	if n := storedBlocks(filepath.Join(dir, "none"), 4096); n != 0 {
		t.Errorf("%d blocks where there is nothing", n)
	}
	if o := (ReplayOptions{BlockBytes: 4097, Ranks: 3}); o.spaceOfBlock() != 3*8192 {
		t.Errorf("a block takes %d bytes", o.spaceOfBlock())
	}
}
