package etcdlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
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

// mark marks how far the log has got, whenever it has got further.
func (l *leader) mark() {
	tick := time.NewTicker(l.o.Period)
	defer tick.Stop()
	told := ""
	for marked := uint64(0); ; {
		l.mu.Lock()
		p := l.progress
		l.mu.Unlock()
		// Until what was missing is forgotten for good, the old mark holds.
		if p.index != marked && !p.forgetting && l.valid() {
			m := mark{stamp: stamp{jsonFormat, l.by}, Cluster: l.id, Revision: p.revision, Index: p.index, Chain: p.chain}
			if err := m.write(l.o.Dir, l.by.Host, l.stillValid); err == nil {
				marked, told = p.index, ""
			} else if !errors.Is(err, cluster.ErrLost) && err.Error() != told {
				told = err.Error()
				l.o.Logger.Warn("page log: the leader cannot mark how far it has got: an etcd that is put back to an old state might not be noticed", "err", err)
			}
		}
		select {
		case <-l.ctx.Done():
			return
		case <-l.lost:
			return
		case <-tick.C:
		}
	}
}

// stillValid keeps a leader that was paused from putting an old mark in the place of its successor's.
func (l *leader) stillValid() error {
	if !l.valid() {
		return cluster.ErrLost
	}
	return nil
}

// write replaces the mark, if that may still be done when it is written. Hosts may do so at once: what any of them marks was true.
func (m mark) write(dir, host string, still func() error) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, markName)
	return replaceFile(path, fmt.Sprintf("%s.%s%s", path, host, unfinishedSuffix), func(w io.Writer) error {
		_, err := w.Write(append(b, '\n'))
		return err
	}, still)
}
