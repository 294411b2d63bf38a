package daemon

import "time"

// pace keeps to a rate.
type pace struct {
	rate int64 // bytes a second; 0: as fast as it goes
	due  time.Time
}

// mostLag is how far it may be behind and still catch up, as timers and the scheduler delay it. What a disk that hangs
// has kept it from reading is not made up for: that would be faster than the rate.
const mostLag = 100 * time.Millisecond

// after returns when the next bytes may be read, if n were read by now.
func (p *pace) after(n int64, now time.Time) time.Time {
	if p.rate <= 0 {
		return now
	}
	took := time.Duration(float64(n) / float64(p.rate) * float64(time.Second))
	if late := now.Add(-mostLag); p.due.Before(late) {
		p.due = late
	}
	p.due = p.due.Add(took)
	return p.due
}
