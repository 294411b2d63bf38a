package measure

import (
	"fmt"
	"os"
)

// NewScratch makes a directory for a benchmark below parent, by default the system's
// directory for temporary files. The caller removes it.
func NewScratch(parent string) (string, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	dir, err := os.MkdirTemp(parent, "kv3fs-bench-")
	if err != nil {
		return "", fmt.Errorf("bench: scratch directory: %w", err)
	}
	return dir, nil
}

// newSocketDir is NewScratch for a socket, whose path may have no more than 107 bytes.
func newSocketDir() (string, error) {
	const most = 70 // which leaves enough for the names below it
	if len(os.TempDir()) > most {
		return NewScratch("/tmp")
	}
	return NewScratch("")
}
