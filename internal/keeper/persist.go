package keeper

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// replace writes a file of the state directory in one step: after a crash, what was there or
// all of what write wrote is there.
func replace(dir, name string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(dir, name+".*.tmp")
	if err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	w := bufio.NewWriterSize(f, 256<<10)
	err = write(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("save %s: %w", name, err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	return nil
}

// removeUnfinished removes what a crash in replace has left.
func removeUnfinished(dir, name string) {
	left, _ := filepath.Glob(filepath.Join(globEscape(dir), name+".*.tmp"))
	for _, path := range left {
		os.Remove(path)
	}
}

// globEscape makes a path match itself alone.
func globEscape(path string) string {
	escaped := make([]byte, 0, len(path))
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', '\\':
			escaped = append(escaped, '\\')
		}
		escaped = append(escaped, path[i])
	}
	return string(escaped)
}
