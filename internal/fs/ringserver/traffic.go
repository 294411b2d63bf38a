package ringserver

import (
	"math"
	"sync/atomic"
	"syscall"
	"time"
)

// Traffic is what rings of one direction have moved since the server was made.
type Traffic struct {
	Bytes  int64
	Within []int64       // requests that took at most each of TrafficBounds, but more than the one before; then the others
	Took   time.Duration // all requests together, from admission to completion
	Failed []Failure     // those that failed, by errno; the errno 0 stands for all others
}

// Failure is how many requests failed with an errno.
type Failure struct {
	Errno    syscall.Errno
	Requests int64
}

// TrafficBounds are the bounds of Traffic.Within, in ascending order.
func TrafficBounds() []time.Duration { return trafficBounds[:] }

var trafficBounds = [...]time.Duration{
	10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
}

// trafficErrnos are counted apart. The last one is for all others.
var trafficErrnos = [...]syscall.Errno{
	syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.ETIMEDOUT, syscall.EACCES, syscall.EROFS, syscall.EBADF, syscall.EINVAL, syscall.ESHUTDOWN, 0,
}

// traffic counts one direction.
type traffic struct {
	bytes, took atomic.Int64
	within      [len(trafficBounds) + 1]atomic.Int64
	failed      [len(trafficErrnos)]atomic.Int64
}

// note counts a request with the result that its client gets.
func (t *traffic) note(result int64, took time.Duration) {
	took = max(took, 0)
	bucket := 0
	for bucket < len(trafficBounds) && took > trafficBounds[bucket] {
		bucket++
	}
	t.within[bucket].Add(1)
	t.took.Add(int64(took))
	if result >= 0 {
		t.bytes.Add(result)
		return
	}
	errno := 0
	for errno < len(trafficErrnos)-1 && int64(trafficErrnos[errno]) != -max(result, -math.MaxInt32) {
		errno++
	}
	t.failed[errno].Add(1)
}

func (t *traffic) read() Traffic {
	all := Traffic{Bytes: t.bytes.Load(), Took: time.Duration(t.took.Load())}
	for i := range t.within {
		all.Within = append(all.Within, t.within[i].Load())
	}
	for i, errno := range trafficErrnos {
		all.Failed = append(all.Failed, Failure{errno, t.failed[i].Load()})
	}
	return all
}

// Traffic returns what rings have moved. It may be called at any time.
func (s *Server) Traffic() (reads, writes Traffic) { return s.reads.read(), s.writes.read() }

// traffic returns the counters of a ring's direction.
func (r *ring) traffic() *traffic {
	if r.write {
		return &r.server.writes
	}
	return &r.server.reads
}
