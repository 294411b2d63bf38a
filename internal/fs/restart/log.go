package restart

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
)

// Log is a file of records that only grows, until it is compacted. A record is there once Append
// has returned, also if the process is killed then. Its methods may be called concurrently.
type Log struct {
	path    string
	version uint32

	mu    sync.Mutex
	file  *os.File
	bytes int64
	buf   []byte
}

// OpenLog opens a log, or makes it, and passes the records that are there to replay, in order; they
// are valid until it returns. A record that a daemon was killed while it wrote is dropped. ErrDamaged:
// a record is not what was written, or of another version; the log then has none.
func (d *Dir) OpenLog(name string, version uint32, replay func(payload []byte) error) (*Log, error) {
	l := &Log{path: d.Path(name), version: version}
	before, err := os.ReadFile(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("state of restarts: %w", err)
	}
	whole, replayed := l.replay(before, replay)
	if replayed != nil {
		whole = 0
	}
	l.bytes = int64(whole)
	if l.file, err = os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o600); err == nil && whole < len(before) {
		err = l.file.Truncate(l.bytes)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("state of restarts: %w", err), l.file.Close())
	}
	return l, replayed
}

// replay returns how many bytes of a log are whole records.
func (l *Log) replay(b []byte, each func(payload []byte) error) (whole int, err error) {
	rest := b
	for len(rest) > 0 {
		version, payload, next, err := cutFrame(rest)
		switch {
		case err != nil && cutShort(rest):
			return len(b) - len(rest), nil
		case err == nil && version != l.version:
			err = fmt.Errorf("%w: a record has version %d, not %d", ErrDamaged, version, l.version)
		case err == nil:
			err = each(payload)
		}
		if err != nil {
			return 0, fmt.Errorf("%s, byte %d: %w", l.path, len(b)-len(rest), err)
		}
		rest = next
	}
	return len(b), nil
}

// cutShort reports whether b can be the beginning of a frame that was not written to its end.
func cutShort(b []byte) bool {
	if len(b) < frameHead {
		return true
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	return n <= MostBytes && uint64(len(b)) < frameHead+n+frameSum
}

// Append adds a record by one system call.
func (l *Log) Append(payload []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = appendFrame(l.buf[:0], l.version, payload)
	return l.write()
}

// AppendAll adds records by one system call.
func (l *Log) AppendAll(payloads [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = l.buf[:0]
	for _, p := range payloads {
		l.buf = appendFrame(l.buf, l.version, p)
	}
	return l.write()
}

func (l *Log) write() error {
	n, err := l.file.Write(l.buf)
	if err != nil && n > 0 { // not half a record in the middle
		err = errors.Join(err, l.file.Truncate(l.bytes))
		n = 0
	}
	l.bytes += int64(n)
	if err != nil {
		return fmt.Errorf("state of restarts: %w", err)
	}
	return nil
}

// Bytes returns how large the log is.
func (l *Log) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// Compact replaces all records by those that write appends; appends of others wait meanwhile. After
// an error the log is as it was.
func (l *Log) Compact(write func(add func(payload []byte) error) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.OpenFile(l.path+newSuffix, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("state of restarts: %w", err)
	}
	const chunk = 1 << 20
	var buf []byte
	var size int64
	flush := func() error {
		n, err := f.Write(buf)
		size += int64(n)
		buf = buf[:0]
		return err
	}
	err = write(func(payload []byte) error {
		if buf = appendFrame(buf, l.version, payload); len(buf) >= chunk {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	if err == nil {
		err = os.Rename(l.path+newSuffix, l.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("state of restarts: %w", err), f.Close(), os.Remove(l.path+newSuffix))
	}
	old := l.file
	l.file, l.bytes = f, size
	return old.Close()
}

// Close closes the file. Nobody appends any more.
func (l *Log) Close() error { return l.file.Close() }
