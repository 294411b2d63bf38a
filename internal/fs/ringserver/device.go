package ringserver

import (
	"time"

	"github.com/kv3fs/kv3fs/internal/histogram"
)

// timedBytes is the size from which a call is long enough to be timed, whatever it costs. Smaller ones are timed while their
// ring waits for a device anyway.
const timedBytes = 64 << 10

var deviceBounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second,
}

func newDeviceTimes() [2]*histogram.Histogram {
	return [2]*histogram.Histogram{histogram.New(deviceBounds[:]), histogram.New(deviceBounds[:])}
}

func directionOf(write bool) int {
	if write {
		return 1
	}
	return 0
}

// Device returns how long the calls took by which rings read and wrote files and that waited for the device: what is in the
// page cache, or goes there, does not count.
func (s *Server) Device() (reads, writes histogram.Count) {
	return s.device[0].Count(), s.device[1].Count()
}
