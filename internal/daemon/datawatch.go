package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/logpace"
)

// lookAtData is how often the data directory is looked at.
const lookAtData = 10 * time.Second

// dataWatch notices that the data directory was deleted, renamed or covered by another one:
// the daemon goes on serving the old one, which nobody can reach by its name. It also notices that
// the disk is full, of which the daemon hears nothing while the kernel writes by itself.
type dataWatch struct {
	dir  string
	was  unix.Stat_t
	log  *slog.Logger
	pace logpace.Pace
	quit chan struct{}
}

// watchData looks every period until end. Nothing waits for it: it can hang with the disk.
func watchData(dir string, period time.Duration, log *slog.Logger) (*dataWatch, error) {
	w := &dataWatch{dir: dir, log: log, quit: make(chan struct{})}
	if err := unix.Stat(dir, &w.was); err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	go func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.look()
			case <-w.quit:
				return
			}
		}
	}()
	return w, nil
}

func (w *dataWatch) end() { close(w.quit) }

func (w *dataWatch) look() {
	w.lookAtSpace()
	var is unix.Stat_t
	err := unix.Stat(w.dir, &is)
	what := ""
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		what = "deleted or renamed"
	case err == nil && (is.Dev != w.was.Dev || is.Ino != w.was.Ino):
		what = "replaced by another"
	default:
		return // an error of the disk says nothing about it
	}
	if more, now := w.pace.Log(what); now {
		w.log.Error("the data directory was "+what+": the daemon serves the former one, and new files are lost once it stops",
			"data", w.dir, "cure", "copy what is needed from the mount, stop the daemon, put the directory back, start the daemon", "more", more)
	}
}

// leastFree is less than most writes of KV cache need.
const leastFree = 1 << 20

func (w *dataWatch) lookAtSpace() {
	var st unix.Statfs_t
	if unix.Statfs(w.dir, &st) != nil || st.Blocks == 0 { // 0: it has no limit
		return
	}
	free := int64(st.Bavail) * st.Bsize
	if free >= leastFree && (st.Files == 0 || st.Ffree > 0) {
		return
	}
	if more, now := w.pace.Log("full"); now {
		w.log.Error("the data directory's disk is full: writes fail with ENOSPC",
			"data", w.dir, "free bytes", free, "free inodes", st.Ffree, "cure", "delete what is not needed, or enlarge it: df and df -i", "more", more)
	}
}
