package ringserver

import (
	"time"

	"github.com/kv3fs/kv3fs/internal/histogram"
)

// tally is what requests have in common that are posted together: it is counted once for all of them, since what is counted is
// shared by rings, and so by processors.
type tally struct {
	dir          *directoryTraffic
	bucket, size int
	requests     int64
	bytes        int64
	took         time.Duration
}

// note counts a request that is posted with a result. publish adds it to what others can see. The caller holds mu.
func (r *ring) note(q *request, result int64) {
	if r.postedAt == 0 {
		r.postedAt = r.server.clock.now()
	}
	dir, took := r.server.trafficOf(q), time.Duration(max(r.postedAt-q.admitted, 0))
	bucket, size := histogram.Bucket(trafficBounds[:], took), sizeClass(q.args.Len)
	if result < 0 {
		dir.of(r.write).fail(result)
		r.process.of(r.write).failed.Add(1)
	}
	if took >= slowEnough {
		if int64(took) >= r.server.slowIO.Load() && len(r.slowOnes) < mostSlow {
			r.noteSlow(q, result, took)
		}
		dir.of(r.write).took.Show(histogram.Example{Took: took, At: time.Now(), File: q.args.FileIno, PID: r.process.pid})
	}
	at := len(r.tallies) - 1
	for at >= 0 && (r.tallies[at].dir != dir || r.tallies[at].bucket != bucket || r.tallies[at].size != size) {
		at--
	}
	if at < 0 {
		r.tallies = append(r.tallies, tally{dir: dir, bucket: bucket, size: size})
		at = len(r.tallies) - 1
	}
	t := &r.tallies[at]
	t.requests++
	t.bytes += max(result, 0)
	t.took += took
}

// count adds what was noted to what others can see. The caller holds mu.
func (r *ring) count() {
	client := r.clientRow()
	for _, t := range r.tallies {
		d := t.dir.of(r.write)
		d.took.Add(t.bucket, t.requests, t.took)
		d.bytes.Add(t.bytes)
		c := &client.sizes[t.size]
		c.took.Add(t.bucket, t.requests, t.took)
		c.bytes.Add(t.bytes)
		p := r.process.of(r.write)
		p.requests.Add(t.requests)
		p.bytes.Add(t.bytes)
	}
	clear(r.tallies)
	r.tallies, r.postedAt = r.tallies[:0], 0
}

// noteTaken counts a batch that a worker takes, and how long its requests have waited: those that were not taken before. The caller holds mu.
func (r *ring) noteTaken(batch []*request, now int64) {
	c := r.clientRow()
	bucket, waiting, sum, first := 0, int64(0), time.Duration(0), 0
	for _, q := range batch {
		if q.begun { // and goes on
			continue
		}
		q.begun = true
		first++
		waited := time.Duration(max(now-q.lay, 0))
		if b := histogram.Bucket(trafficBounds[:], waited); b != bucket {
			if waiting > 0 {
				c.queued.Add(bucket, waiting, sum)
			}
			bucket, waiting, sum = b, 0, 0
		}
		waiting++
		sum += waited
	}
	if waiting > 0 {
		c.queued.Add(bucket, waiting, sum)
	}
	if first > 0 {
		c.batches[batchClass(first)].Add(1)
		c.batched.Add(int64(first))
	}
}

// noteExpired counts a request that has met its deadline.
func (r *ring) noteExpired() {
	r.server.expired[directionOf(r.write)].Add(1)
}
