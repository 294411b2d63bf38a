package daemon

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// dataIDName is a file in tree.StateName that tells a data directory from all others, wherever it is mounted.
const dataIDName = "cluster-id"

var validDataID = regexp.MustCompile(`^[A-Z2-7]{26}\n$`) // as rand.Text makes them

// dataID returns the identity of a data directory, which it gives it if it has none. Hosts may do so at
// once: all get the same.
func dataID(data string) (string, error) {
	file := filepath.Join(data, tree.StateName, dataIDName)
	id, err := readDataID(file)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	if err := makeDataID(file); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("give the data directory an identity: %w", err)
	}
	return readDataID(file)
}

// makeDataID makes the file under another name and links it, so that nobody reads half of it.
func makeDataID(file string) error {
	f, err := os.CreateTemp(filepath.Dir(file), dataIDName+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(rand.Text() + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	err = os.Link(f.Name(), file)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EMLINK) {
		err = writeNewID(file) // a file system without links
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(file))
}

// writeNewID makes the file in place. Others who find it unfinished wait.
func writeNewID(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(rand.Text() + "\n")
	return errors.Join(err, f.Sync(), f.Close())
}

// unfinishedID is how long another host may take to write what it has made.
const unfinishedID = 2 * time.Second

func readDataID(file string) (string, error) {
	for deadline := time.Now().Add(unfinishedID); ; time.Sleep(unfinishedID / 50) {
		f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
		if err != nil {
			return "", err
		}
		b := make([]byte, 64)
		n, err := f.Read(b)
		err = errors.Join(err, f.Close())
		switch {
		case validDataID.Match(b[:n]):
			return string(b[:n-1]), nil
		case time.Now().After(deadline):
			return "", errors.Join(err, fmt.Errorf("%s should say which data directory this is, and does not: if no other host's kv3fs is just starting for the first time, remove it; a page index in etcd then takes this for another directory", file))
		}
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
