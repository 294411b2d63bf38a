package ringserver

import (
	"testing"
	"time"
)

// A clock stands still where nobody looks at it for long, whoever looks first.
func TestClockLeavesOutPauses(t *testing.T) {
	const hour = time.Hour
	c := newClock(time.Minute)
	before := c.tick()
	c.start = c.start.Add(-hour) // an hour passes
	if after := c.now(); after-before > int64(hour/2) {
		t.Errorf("%v passed in a pause", time.Duration(after-before))
	}
	if after := c.tick(); after-before > int64(hour/2) {
		t.Errorf("%v passed in a pause, says the tick after it", time.Duration(after-before))
	}
	c.start = c.start.Add(-30 * time.Second)
	if after := c.now(); after-before < int64(30*time.Second) {
		t.Errorf("%v passed, want 30 s", time.Duration(after-before))
	}
}
