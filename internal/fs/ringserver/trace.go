package ringserver

import "time"

// Batch is what a worker did with requests of one ring.
type Batch struct {
	Admitted, Began, Ended time.Time // Admitted is when the first of them came
	Write                  bool
	Requests, Failed       int
	Bytes                  int64
	Inode                  uint64 // of the first request
	UID, PID               int
	WaitsDevice            bool
}

// batchOf describes a batch before its completions are posted.
func (s *Server) batchOf(r *ring, j job, began time.Time, waited bool) Batch {
	b := Batch{Began: began, Ended: time.Now(), Admitted: began, Write: r.write, Requests: len(j.batch), Bytes: j.bytes, UID: int(r.cred.UID), PID: r.process.pid, WaitsDevice: waited}
	now := s.clock.now()
	for i, q := range j.batch {
		if at := b.Ended.Add(-time.Duration(now - q.admitted)); at.Before(b.Admitted) {
			b.Admitted = at
		}
		if i == 0 {
			b.Inode = q.args.FileIno
		}
		if q.result < 0 || q.state.Load() == stateAnswered && r.expired(q) {
			b.Failed++
		}
	}
	return b
}

// expired reports whether a request was answered because its deadline had passed.
func (r *ring) expired(q *request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return q.expiredIn != stateDone
}
