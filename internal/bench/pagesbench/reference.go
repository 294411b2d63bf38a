package pagesbench

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed reference/server.py
var referenceText []byte

// referenceCommand writes the Python reference into dir and returns the command that runs
// it on a port of loopback.
func referenceCommand(python, dir, port string) ([]string, error) {
	path := filepath.Join(dir, "server.py")
	if err := os.WriteFile(path, referenceText, 0o600); err != nil {
		return nil, fmt.Errorf("bench: the reference: %w", err)
	}
	return []string{python, path, "--port", port}, nil
}
