package main

import (
	"errors"
	"os"
	"path/filepath"
)

// writeFiles writes files into a directory, which it creates.
func writeFiles(dir string, files map[string]string) error {
	errs := []error{os.MkdirAll(dir, 0o755)}
	for name, text := range files {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return errors.Join(errs...)
}
