package hogs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// files uses the mount as any program does: a new file for each call, which it reads back
// and removes.
type files struct{ dir string }

func connectFiles(a honest) (session, error) { return files{a.Dir}, nil }

func (f files) call(n uint64) error {
	path := filepath.Join(f.dir, fmt.Sprintf("file-%d", n))
	content := make([]byte, writeBytes)
	fill(content, n)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	got, err := os.ReadFile(path)
	if err == nil && len(got) != writeBytes {
		err = fmt.Errorf("%d bytes, want %d", len(got), writeBytes)
	}
	if err == nil {
		err = check(got, n)
	}
	return errors.Join(err, os.Remove(path))
}

func (files) close() error { return nil }
