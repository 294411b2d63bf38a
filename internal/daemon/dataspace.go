package daemon

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// dataSpace asks the data directory's file system how much is free.
type dataSpace struct {
	dir   string
	bytes *prometheus.Desc
	free  *prometheus.Desc
	files *prometheus.Desc

	answer asked[space]
}

// space is what a file system has.
type space struct {
	bytes, freeBytes int64 // free for those who are not root
	files, freeFiles uint64
}

func newDataSpace(dir string) *dataSpace {
	return &dataSpace{
		dir:   dir,
		bytes: prometheus.NewDesc("kv3fs_data_filesystem_bytes", "Size of the file system that the data directory is on.", nil, nil),
		free:  prometheus.NewDesc("kv3fs_data_filesystem_free_bytes", "What is free on that file system for users other than root, whoever has filled the rest. At 0, saves fail with ENOSPC.", nil, nil),
		files: prometheus.NewDesc("kv3fs_data_filesystem_free_files", "Inodes that are free on that file system; nothing where it does not count them.", nil, nil),
	}
}

// spaceAge is how old an answer may be.
const spaceAge = time.Second

// look returns what the file system has. The error is the file system's, or the context's where it does not answer.
func (d *dataSpace) look(ctx context.Context) (space, error) { return d.lookNow(ctx, spaceAge) }

// lookNow is look for an answer that is at most so old.
func (d *dataSpace) lookNow(ctx context.Context, age time.Duration) (space, error) {
	// Nobody waits for that goroutine: on a file system that hangs for ever, it ends with the process.
	start := func(ask func()) { go ask() }
	return d.answer.get(ctx, start, age, func() (space, error) {
		var st unix.Statfs_t
		if err := unix.Statfs(d.dir, &st); err != nil {
			return space{}, err
		}
		return space{bytes: int64(st.Blocks) * st.Bsize, freeBytes: int64(st.Bavail) * st.Bsize, files: st.Files, freeFiles: st.Ffree}, nil
	})
}

// Describe implements prometheus.Collector.
func (d *dataSpace) Describe(out chan<- *prometheus.Desc) {
	out <- d.bytes
	out <- d.free
	out <- d.files
}

// Collect implements prometheus.Collector. Of a file system that does not answer it says nothing.
func (d *dataSpace) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := d.look(ctx)
	if err != nil {
		return
	}
	gauge := func(desc *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v)
	}
	gauge(d.bytes, float64(s.bytes))
	gauge(d.free, float64(s.freeBytes))
	if s.files > 0 {
		gauge(d.files, float64(s.freeFiles))
	}
}
