package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/health"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// shortestLook is the least time that a file system gets to answer before it counts as sick.
const shortestLook = time.Second

// useData returns a function that uses the file system under a data directory as clients do: it looks up a name that the
// kernel cannot know yet, and reads a file of this host's state where there is one.
func useData(data, stateDir string) func() error {
	var n int
	return func() error {
		n++
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(data, fmt.Sprintf("%s-look-%d-%d", tree.StateName, os.Getpid(), n)), &st); troubled(err) {
			return err
		}
		if stateDir == "" {
			return nil
		}
		f, err := os.Open(filepath.Join(stateDir, hostFile))
		if err != nil {
			return onlyTrouble(err)
		}
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		_, err = io.Copy(io.Discard, f)
		_ = f.Close()
		return onlyTrouble(err)
	}
}

func onlyTrouble(err error) error {
	if troubled(err) {
		return err
	}
	return nil // other errors are answers: dataWatch says when the directory has gone
}

// troubled reports whether an error is one of the file system itself.
func troubled(err error) bool {
	return health.Lost(err) || errors.Is(err, unix.EIO) || errors.Is(err, unix.ESTALE)
}

// healthMetric exports whether the data directory's file system works.
func healthMetric(h *health.Store) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kv3fs_data_works",
		Help: "1 while the data directory's file system works; 0 while it fails or hangs: the log has the cause.",
	}, func() float64 {
		if h.Err() != nil {
			return 0
		}
		return 1
	})
}
