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
// the daemon goes on serving the old one, which nobody can reach by its name.
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
