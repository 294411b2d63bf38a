package etcdlog

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// unfinishedSuffix ends the name of a file that is being written.
const unfinishedSuffix = ".tmp"

// replaceFile gives path new content, which is whole and on the servers before it has the name. No other host may use
// the temporary name. still may refuse when all is written.
func replaceFile(path, temporary string, write func(io.Writer) error, still func() error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = still()
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
