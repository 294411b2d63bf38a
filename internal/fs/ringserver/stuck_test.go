package ringserver

import (
	"testing"
	"time"
)

// awaitNoneStuck waits until all calls that were stuck have returned.
func (p *poller) awaitNoneStuck(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		n := p.stuck
		p.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d workers are still stuck", n)
		}
	}
}
