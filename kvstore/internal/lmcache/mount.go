package lmcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/usrbio"
)

// FindMount returns the 3FS that all base paths are on, or will be when they are made, and
// "" where none is on one. A base path that hangs is an error when the timeout has passed.
func FindMount(basePaths []string, timeout time.Duration) (mount string, err error) {
	found := make(chan string, 1)
	err = blockfiles.Bounded(cmp.Or(timeout, defaultTimeout), basePaths, func() error {
		mount, err := findMount(basePaths)
		found <- mount
		return err
	}, func() {})
	if err != nil {
		return "", err
	}
	return <-found, nil
}

func findMount(basePaths []string) (string, error) {
	var first string
	for i, dir := range basePaths {
		mount, err := usrbio.FindMount(context.Background(), existing(dir))
		if err != nil && !errors.Is(err, usrbio.ErrNotMounted) {
			return "", fmt.Errorf("kvstore: base path %s: %w", dir, err)
		}
		if i == 0 {
			first = mount
		}
		if mount != first {
			return "", fmt.Errorf("kvstore: base paths %s and %s are not on the same mount; name directories of one 3FS, or of none", basePaths[0], dir)
		}
	}
	return first, nil
}

// existing returns the directory, or the nearest one above it that exists.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return dir
		}
		up := filepath.Dir(filepath.Clean(dir))
		if up == dir {
			return dir
		}
		dir = up
	}
}
