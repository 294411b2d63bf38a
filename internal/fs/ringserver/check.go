package ringserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"github.com/kv3fs/kv3fs/internal/fs/restart"
)

// CheckState returns an error if a server would not go on with what another one keeps in dir, and else how many registrations these
// are. It changes nothing. What comes and goes meanwhile is not looked at.
func CheckState(dir *restart.Dir) (registrations int, err error) {
	run := ""
	for _, kind := range []struct {
		dir  string
		look func(name string, version uint32, text []byte) error
	}{
		{registrationsDir, func(_ string, version uint32, text []byte) error {
			_, _, err := decodeRegistration(version, text)
			registrations++
			return err
		}},
		{handlesDir, func(_ string, version uint32, text []byte) error {
			_, err := decodeHandle(version, text)
			return err
		}},
		{semaphoresDir, func(name string, version uint32, text []byte) error {
			var err error
			if isElsewhere(name) {
				_, _, err = decodeSemaphoresElsewhere(version, text, run)
			} else {
				_, err = decodeSemaphores(version, text, run)
			}
			return err
		}},
	} {
		if kind.dir == semaphoresDir {
			version, text, err := dir.Read(runFile)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				run, err = decodeRun(version, text)
			}
			if err != nil {
				return 0, fmt.Errorf("%s: %w", runFile, err)
			}
		}
		names, err := dir.Names(kind.dir)
		if err != nil {
			return 0, err
		}
		for _, name := range names {
			version, text, err := dir.Read(kind.dir + "/" + name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = kind.look(name, version, text)
			}
			if err != nil {
				return 0, fmt.Errorf("%s/%s: %w", kind.dir, name, err)
			}
		}
	}
	names, err := dir.Names(journalsDir)
	for i := 0; i < len(names) && err == nil; i++ {
		if _, bad := strconv.ParseUint(names[i], 10, 64); bad == nil {
			err = checkJournal(dir.Path(journalsDir + "/" + names[i]))
		}
	}
	return registrations, err
}

// checkJournal looks at the format of a ring's journal.
func checkJournal(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var word [8]byte
	if _, err := io.ReadFull(f, word[:]); err != nil {
		return nil // it is being made
	}
	if format := binary.LittleEndian.Uint64(word[:]); format != 0 && format != journalFormat {
		return fmt.Errorf("the journal of a ring, %s, has format %#x, and this version knows %#x: %w", path, format, uint64(journalFormat), restart.ErrDamaged)
	}
	return nil
}
