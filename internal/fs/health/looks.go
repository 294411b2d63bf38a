package health

import (
	"fmt"
	"math"
	"time"
)

const (
	lookEvery     = 5 * time.Second
	lookEverySick = time.Second
	// leastPause is between looks when calls fail, while the file system worked at the last look.
	leastPause = 200 * time.Millisecond
	// mostPending is how many looks may not have ended, and be newer than those that have, mostLost how many may be older.
	// Each holds a thread.
	mostPending, mostLost = 16, 64
)

// looks decides when to look, and what the looks say. A look may hang, or be lost, so that it never ends although the file
// system works again: so another one begins beside it, and the newest that has ended counts. Times are of the caller's clock.
type looks struct {
	limit   time.Duration // how long one may take
	last    int           // number of the newest
	begun   time.Duration // when it began
	pending map[int]time.Duration
	ended   int   // number of the newest that has ended
	why     error // what that one has found
	doubted bool  // a call has failed since the newest began
}

func newLooks(limit time.Duration) *looks {
	return &looks{limit: limit, pending: map[int]time.Duration{}}
}

func (l *looks) begin(now time.Duration) (number int) {
	l.last++
	l.begun, l.doubted = now, false
	l.pending[l.last] = now
	return l.last
}

// end records what a look has found. An older one than the newest that has ended says nothing.
func (l *looks) end(number int, err error) {
	delete(l.pending, number)
	if number > l.ended {
		l.ended, l.why = number, err
	}
}

// open returns how many looks are newer than those that have ended, and when the first of them began.
func (l *looks) open() (n int, first time.Duration) {
	first = math.MaxInt64
	for number, began := range l.pending {
		if number > l.ended {
			n++
			first = min(first, began)
		}
	}
	return n, first
}

// due returns when the next one is to begin. Beside some that have not ended, the pause doubles with each: it is about as
// long as the file system has been away.
func (l *looks) due() time.Duration {
	n, _ := l.open()
	if n >= mostPending || len(l.pending)-n >= mostLost {
		return math.MaxInt64
	}
	if n > 0 {
		return l.begun + l.limit<<(n-1)
	}
	pause := lookEvery
	switch {
	case l.why != nil:
		pause = lookEverySick
	case l.doubted:
		pause = leastPause
	}
	return l.begun + pause
}

// waits returns how long no look has ended that was begun.
func (l *looks) waits(now time.Duration) time.Duration {
	if n, first := l.open(); n > 0 {
		return now - first
	}
	return 0
}

// verdict returns what is wrong with the file system, nil if nothing is, and whether it hangs.
func (l *looks) verdict(now time.Duration) (err error, hangs bool) {
	if l.waits(now) >= l.limit {
		return fmt.Errorf("it has not answered for %v", l.limit), true
	}
	if n, _ := l.open(); len(l.pending)-n >= mostLost {
		return NeedsRestart{fmt.Errorf("%d looks at it were never answered", mostLost)}, false
	}
	return l.why, false
}

// tick is how late it may be noticed that a look hangs.
func (l *looks) tick() time.Duration { return min(l.limit/8, time.Second) }

// pause returns how long there is nothing to do.
func (l *looks) pause(now time.Duration) time.Duration {
	wait := max(l.due()-now, 0)
	if n, _ := l.open(); n > 0 {
		wait = min(wait, l.tick())
	}
	return wait
}

// ran returns for how long this process has run of the time that a pause took. While it was stopped no look could end, and
// none was late.
func (l *looks) ran(took, pause time.Duration) time.Duration { return min(took, pause+l.tick()) }
