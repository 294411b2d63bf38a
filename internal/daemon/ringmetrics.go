package daemon

import (
	"cmp"
	"strconv"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/histogram"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// ringMetrics exports what the rings of a daemon move.
type ringMetrics struct {
	rings                                              *ringserver.Server
	requests, failed, bytes                            *prometheus.Desc // by directory
	clientRequests, clientBytes, queue, batch          *prometheus.Desc // by client
	inFlight, workers, stuck, expired, refused, device *prometheus.Desc
}

func newRingMetrics(rings *ringserver.Server) *ringMetrics {
	const (
		byDirectory = " The directory is the first two of the file's path on the mount; \"other\" is for requests without a file, and for what has no place among the 32 directories counted apart. A user with many loses a place to a user with fewer, and what was not used for an hour makes room; what it has counted is shown no more."
		byClient    = " The process is the name of the client's command when it first registered, \"\" where the daemon cannot see it; \"other\" with no uid is for what has no place among the 16 counted apart, which are given away as directories' are."
	)
	directory, client := []string{"directory", "direction"}, []string{"process", "uid", "direction"}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kv3fs_ring_"+name, help, labels, nil)
	}
	return &ringMetrics{
		rings: rings,
		requests: desc("request_seconds",
			"Time of requests of rings from when the daemon took them to their completion. For engines with pages, reads are their loads and writes their saves, without what the engine itself does. Exemplars name the inode and the process of slow ones."+byDirectory, directory...),
		failed: desc("requests_failed_total",
			"Requests of rings that failed, by errno. vLLM takes a failed load for a good one: watch direction=\"read\"."+byDirectory, append(directory[:2:2], "errno")...),
		bytes:          desc("bytes_total", "Bytes that rings have moved."+byDirectory, directory...),
		clientRequests: desc("client_request_seconds", "The same time by client and by how many bytes a request asks for: at most the size, or more than the largest (larger)."+byClient, append(client[:3:3], "size")...),
		clientBytes:    desc("client_bytes_total", "Bytes that rings have moved, by client and size."+byClient, append(client[:3:3], "size")...),
		queue: desc("queue_seconds",
			"Time from when the daemon saw a request in the ring until a worker began it. Long: the workers are busy or the device is slow (--workers), or the client submits less than the io_depth that it asked for."+byClient, client...),
		batch:    desc("batch_requests", "Requests that a worker took from a ring at once. Mostly 1: the client has one request in flight, and pays the way to the daemon and back for each."+byClient, client...),
		inFlight: desc("inflight_requests", "Requests that were taken and are not answered, by priority of the ring.", "priority"),
		workers:  desc("busy_workers", "Workers that have requests, by priority.", "priority"),
		stuck:    desc("stuck_workers", "Of these, those that have been in one request for 50 ms or that wait for room. More than 0 for long: the device is slow or hangs, or nothing more may leave the directory.", "priority"),
		expired:  desc("requests_expired_total", "Requests that were answered with ETIMEDOUT because they met the deadline (--deadline): the data directory's file system does not answer. Engines lose these loads and saves.", "direction"),
		refused: desc("refused_total",
			"Registrations that were refused: iovs, rings, links that are neither, and users' submit semaphores. The log says what to do. File descriptors are registered in the client; a request with one that is unknown fails with EBADF.", "what", "errno"),
		device: prometheus.NewDesc("kv3fs_data_io_seconds", "Time of the calls by which rings read and wrote files and that waited for the device of the data directory. What is in the page cache, or goes there first, does not wait. Without checksums; also calls that failed. One that hangs counts when it ends: see kv3fs_ring_stuck_workers.", []string{"direction"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *ringMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.requests, m.failed, m.bytes, m.clientRequests, m.clientBytes, m.queue, m.batch, m.inFlight, m.workers, m.stuck, m.expired, m.refused, m.device} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *ringMetrics) Collect(out chan<- prometheus.Metric) {
	directories, _ := m.rings.Traffic()
	for _, t := range directories {
		directory := cmp.Or(t.Directory, "other")
		m.collect(out, directory, "read", t.Reads)
		m.collect(out, directory, "write", t.Writes)
	}
	for _, c := range m.rings.ClientTraffic() {
		process, uid := c.Process, strconv.FormatUint(uint64(c.UID), 10)
		if c.Other {
			process, uid = "other", ""
		}
		m.collectClient(out, c.Reads, process, uid, "read")
		m.collectClient(out, c.Writes, process, uid, "write")
	}
	for p, name := range map[wire.Priority]string{wire.High: "high", wire.Normal: "normal", wire.Low: "low"} {
		l := m.rings.Load(p)
		out <- prometheus.MustNewConstMetric(m.inFlight, prometheus.GaugeValue, float64(l.InFlight), name)
		out <- prometheus.MustNewConstMetric(m.workers, prometheus.GaugeValue, float64(l.Workers), name)
		out <- prometheus.MustNewConstMetric(m.stuck, prometheus.GaugeValue, float64(l.Stuck), name)
	}
	reads, writes := m.rings.Expired()
	out <- prometheus.MustNewConstMetric(m.expired, prometheus.CounterValue, float64(reads), "read")
	out <- prometheus.MustNewConstMetric(m.expired, prometheus.CounterValue, float64(writes), "write")
	deviceReads, deviceWrites := m.rings.Device()
	out <- histogramMetric(m.device, deviceReads, "read")
	out <- histogramMetric(m.device, deviceWrites, "write")
	what := map[ringserver.Refused]string{ringserver.NameRefused: "link", ringserver.IovRefused: "iov", ringserver.RingRefused: "ring", ringserver.SemaphoreRefused: "semaphore"}
	for _, r := range m.rings.Refusals() {
		// Also what is 0: an engine registers once, and increase() does not see with what a series begins.
		out <- prometheus.MustNewConstMetric(m.refused, prometheus.CounterValue, float64(r.Times), what[r.What], errnoName(r.Errno))
	}
}

func (m *ringMetrics) collect(out chan<- prometheus.Metric, directory, direction string, t ringserver.Moved) {
	out <- histogramMetric(m.requests, histogram.Count{Bounds: ringserver.TrafficBounds(), Within: t.Within, Sum: t.Took, Examples: t.Examples}, directory, direction)
	out <- prometheus.MustNewConstMetric(m.bytes, prometheus.CounterValue, float64(t.Bytes), directory, direction)
	for _, f := range t.Failed {
		out <- prometheus.MustNewConstMetric(m.failed, prometheus.CounterValue, float64(f.Requests), directory, direction, errnoName(f.Errno))
	}
}

// collectClient shows only what the client does: there would be much that is 0.
func (m *ringMetrics) collectClient(out chan<- prometheus.Metric, c ringserver.ClientMoved, labels ...string) {
	if c.Batched == 0 {
		return
	}
	bounds := ringserver.SizeBounds()
	for i, s := range c.Sizes {
		if s.Took.Total() == 0 {
			continue
		}
		size := "larger"
		if i < len(bounds) {
			size = sizeName(bounds[i])
		}
		all := append(labels[:len(labels):len(labels)], size)
		out <- histogramMetric(m.clientRequests, s.Took, all...)
		out <- prometheus.MustNewConstMetric(m.clientBytes, prometheus.CounterValue, float64(s.Bytes), all...)
	}
	out <- histogramMetric(m.queue, c.Queued, labels...)
	buckets, total := map[float64]uint64{}, uint64(0)
	for i, n := range c.Batches {
		total += uint64(n)
		if i < len(ringserver.BatchBounds()) {
			buckets[float64(ringserver.BatchBounds()[i])] = total
		}
	}
	out <- prometheus.MustNewConstHistogram(m.batch, total, float64(c.Batched), buckets, labels...)
}

// sizeName returns a power of two as operators write it: 4KiB.
func sizeName(bytes uint64) string {
	if bytes >= 1<<20 {
		return strconv.FormatUint(bytes>>20, 10) + "MiB"
	}
	return strconv.FormatUint(bytes>>10, 10) + "KiB"
}

func errnoName(errno syscall.Errno) string {
	if errno == 0 {
		return "other"
	}
	return unix.ErrnoName(errno)
}
