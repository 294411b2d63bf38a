package restart

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// ErrNone says that there is no state of a daemon.
var ErrNone = errors.New("no state of a daemon")

// Look returns the state in a directory, which another daemon may have and change meanwhile. It changes nothing, and neither must
// the caller. The error says in what the state is not of id.
func Look(path string, id Identity) (*Dir, error) {
	if !Holds(path) {
		return nil, fmt.Errorf("%w in %s", ErrNone, path)
	}
	if err := safe(path); err != nil {
		return nil, err
	}
	if why := Differs(path, id); why != "" {
		return nil, fmt.Errorf("state of restarts in %s: %s", path, why)
	}
	return &Dir{path: path, prior: true}, nil
}

// ReadLog passes the records of a log to replay, as OpenLog does, and changes nothing. There may be no log.
func (d *Dir) ReadLog(name string, version uint32, replay func(payload []byte) error) error {
	l := &Log{path: d.Path(name), version: version}
	b, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("state of restarts: %w", err)
	}
	_, err = l.replay(b, replay)
	return err
}
