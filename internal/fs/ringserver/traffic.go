package ringserver

import (
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/rows"
	"github.com/kv3fs/kv3fs/internal/histogram"
)

// Traffic is what rings have moved to and from files of a directory since it has a row of its own.
type Traffic struct {
	// Directory is the first directories of the files' paths, see File; "" is for requests
	// without a file, and for all directories that have no row of their own, see mostDirectories.
	Directory     string
	Reads, Writes Moved
}

// Moved is what rings of one direction have moved.
type Moved struct {
	Bytes  int64
	Within []int64       // requests that took at most each of TrafficBounds, but more than the one before; then the others
	Took   time.Duration // all requests together, from admission to completion
	// Examples are the latest slow requests, by the same times as Within; nil where there was none.
	Examples []*histogram.Example
	Failed   []Failure // those that failed, by errno; the errno 0 stands for all others
}

// Failure is how many requests failed with an errno.
type Failure struct {
	Errno    syscall.Errno
	Requests int64
}

// TrafficBounds are the bounds of Moved.Within, in ascending order.
func TrafficBounds() []time.Duration { return trafficBounds[:] }

var trafficBounds = [...]time.Duration{
	10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
}

// trafficErrnos are counted apart. The last one is for all others.
var trafficErrnos = [...]syscall.Errno{
	syscall.EIO, syscall.ESTALE, syscall.ENODATA, syscall.ENOSPC, syscall.EDQUOT, syscall.ETIMEDOUT, syscall.EACCES, syscall.EROFS, syscall.EBADF, syscall.EINVAL, syscall.ESHUTDOWN, 0,
}

// slowEnough is from when on a request is worth an example.
const slowEnough = 10 * time.Millisecond

// traffic counts one direction.
type traffic struct {
	bytes  atomic.Int64
	took   *histogram.Histogram
	failed [len(trafficErrnos)]atomic.Int64
}

func newTraffic() traffic { return traffic{took: histogram.NewWithExamples(trafficBounds[:])} }

// fail counts the result of a request that failed.
func (t *traffic) fail(result int64) {
	errno := 0
	for errno < len(trafficErrnos)-1 && int64(trafficErrnos[errno]) != -max(result, -math.MaxInt32) {
		errno++
	}
	t.failed[errno].Add(1)
}

func (t *traffic) read() Moved {
	took := t.took.Count()
	all := Moved{Bytes: t.bytes.Load(), Within: took.Within, Took: took.Sum, Examples: took.Examples}
	for i, errno := range trafficErrnos {
		all.Failed = append(all.Failed, Failure{errno, t.failed[i].Load()})
	}
	return all
}

// add adds what another one has counted.
func (t *traffic) add(from *traffic) {
	t.bytes.Add(from.bytes.Load())
	t.took.Merge(from.took)
	for i := range t.failed {
		t.failed[i].Add(from.failed[i].Load())
	}
}

// mostDirectories bounds the directories that are counted apart: users make them, see rows.
const mostDirectories = 32

// directoryTraffic counts what moves to and from files of a directory.
type directoryTraffic struct {
	rows.Held
	reads, writes traffic
}

func newDirectoryTraffic() *directoryTraffic {
	return &directoryTraffic{reads: newTraffic(), writes: newTraffic()}
}

// Total implements rows.Row.
func (d *directoryTraffic) Total() int64 { return d.reads.took.Total() + d.writes.took.Total() }

// Add implements rows.Row.
func (d *directoryTraffic) Add(from *directoryTraffic) {
	d.reads.add(&from.reads)
	d.writes.add(&from.writes)
}

func (d *directoryTraffic) of(write bool) *traffic {
	if write {
		return &d.writes
	}
	return &d.reads
}

// trafficOf returns where a request counts.
func (s *Server) trafficOf(q *request) *directoryTraffic {
	if d := q.countedIn.Load(); d != nil {
		return d
	}
	return s.traffic.Other()
}

// Traffic returns what rings have moved, by directory in order of their names, others last; and beside it what counted by
// directories that have lost their row, see rows.Table.All. It may be called at any time.
func (s *Server) Traffic() (all []Traffic, former Traffic) {
	named, others, lost := s.traffic.All()
	for directory, d := range named {
		all = append(all, Traffic{directory, d.reads.read(), d.writes.read()})
	}
	slices.SortFunc(all, func(a, b Traffic) int { return strings.Compare(a.Directory, b.Directory) })
	return append(all, Traffic{"", others.reads.read(), others.writes.read()}), Traffic{"", lost.reads.read(), lost.writes.read()}
}
