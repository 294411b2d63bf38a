package ringserver

import (
	"fmt"
	"math"
	"time"
)

// Where the time of a request goes. It is measured by the clock's ticks, which cost nothing to read, so each part is right to some tens of
// milliseconds only: enough for what is worth a line in the log.
const (
	spentQueued  = iota // before its turn, all of them
	spentOpening        // checking it, and finding its file with the rights of its user
	spentRoom           // waiting until something else was removed to make room
	spentDevice         // in system calls on the file
	spentSums           // taking checksums or comparing them
	spentParts
)

// SlowIOLeast is the least bound of Options.SlowIO that can be kept.
const SlowIOLeast = 100 * time.Millisecond

// slowRequest is a request that took long.
type slowRequest struct {
	ino           uint64
	off, len      uint64
	result        int64
	took          time.Duration
	spent         [spentParts]int64
	uid, pid      int
	write, inCall bool
}

// SetSlowIO has requests be logged that take at least so long from now on; 0: none.
func (s *Server) SetSlowIO(least time.Duration) {
	if least <= 0 {
		least = math.MaxInt64
	}
	s.slowIO.Store(int64(least))
}

// spend adds the time since the tick at which a part began to it, and returns when the next one begins. The caller is the worker that has the request.
func (q *request) spend(c *clock, part int, since int64) int64 {
	now := c.tickedAt()
	if now != since {
		q.spent[part] += now - since
	}
	return now
}

// noteSlow remembers a request that is posted, to be logged once mu is free. The caller holds mu.
func (r *ring) noteSlow(q *request, result int64, took time.Duration) {
	slow := slowRequest{ino: q.args.FileIno, off: q.args.FileOff, len: q.args.Len, result: result, took: took, uid: int(r.cred.UID), pid: int(r.process.pid), write: r.write}
	switch q.expiredIn {
	case stateRunning: // the worker still writes what it has spent
		slow.spent[spentQueued] = max(q.takenAt-q.admitted, 0)
		slow.spent[spentDevice] = max(int64(took)-slow.spent[spentQueued], 0)
		slow.inCall = true
	case stateBegun:
		part := spentOpening
		if q.awaitsRoom.Load() {
			part = spentRoom
		}
		slow.spent[spentQueued] = max(q.takenAt-q.admitted, 0)
		slow.spent[part] = max(int64(took)-slow.spent[spentQueued], 0)
	case stateQueued, stateTaken: // no worker has it, or others of its batch come first; pieces of it may have been moved
		slow.spent = q.spent
		rest := int64(took)
		for _, spent := range q.spent {
			rest -= spent
		}
		slow.spent[spentQueued] += max(rest, 0)
	default:
		slow.spent = q.spent
	}
	r.slowOnes = append(r.slowOnes, slow)
}

// mostSlow bounds what a ring remembers before it is logged: the others are slow for the same reason.
const mostSlow = 64

// tellSlow logs slow requests. No lock is held: whoever reads the log may be slow.
func (s *Server) tellSlow(all []slowRequest) {
	for i := range all {
		q := &all[i]
		rest := int64(q.took)
		parts := [...]string{"its turn did not come", "opening the file", "waiting for room", "the device", "checksums"}
		cause, most := "", int64(-1)
		for part, name := range parts {
			rest -= q.spent[part]
			if q.spent[part] > most {
				cause, most = name, q.spent[part]
			}
		}
		if rest = max(rest, 0); rest > most {
			cause = "others of its batch, or its ring's memory"
		}
		more, now := s.pace.Log(fmt.Sprint("slow ", q.write, " ", cause))
		if !now {
			continue
		}
		direction := "read"
		if q.write {
			direction = "write"
		}
		inMs := func(ns int64) time.Duration { return time.Duration(ns).Round(time.Millisecond) }
		s.log.Warn("a slow request of a ring", "cause", cause, "file", s.files.Path(q.ino), "direction", direction, "offset", q.off, "bytes", q.len, "result", q.result,
			"took", inMs(int64(q.took)), "queued", inMs(q.spent[spentQueued]), "opening", inMs(q.spent[spentOpening]), "room", inMs(q.spent[spentRoom]),
			"device", inMs(q.spent[spentDevice]), "checksums", inMs(q.spent[spentSums]), "completion", inMs(rest), "in_system_call", q.inCall, "uid", q.uid, "pid", q.pid, "more", more)
	}
}
