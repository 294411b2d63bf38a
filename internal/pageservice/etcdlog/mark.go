package etcdlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// An etcd that was restored from a backup, or emptied, would have the index believe what was true once, and
// give pages out that clients are using. So the leader marks in the shared directory how far the log
// has got; a log that has not got there must not be led.

// markName is the file's name in the directory.
const markName = "mark.json"

// mark is its content.
type mark struct {
	stamp
	Cluster  string `json:"cluster"`
	Revision int64  `json:"etcd_revision"`
	Index    uint64 `json:"index"`
	Chain    chain  `json:"chain"`
}

// readMark returns the mark; a zero one if there is none.
func readMark(dir string) (m mark, err error) {
	path := filepath.Join(dir, markName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	return m, decodeJSON(path, b, &m)
}

// write replaces the mark. Hosts may do so at once: what any of them marks was true.
func (m mark) write(dir, host string) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, markName)
	return replaceFile(path, fmt.Sprintf("%s.%s%s", path, host, unfinishedSuffix), func(w io.Writer) error {
		_, err := w.Write(append(b, '\n'))
		return err
	})
}
