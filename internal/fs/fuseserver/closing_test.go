package fuseserver

import (
	"sync/atomic"
	"testing"
	"time"
)

// A user whose closes hang takes a few goroutines, and the closes of others do not wait.
func TestClosingOfOneUserHangs(t *testing.T) {
	const hanging, patience = 50, 20 * time.Second
	c := newClosing()
	release := make(chan struct{})
	began := make(chan struct{}, hanging)
	var ended atomic.Int64
	for range hanging {
		c.add(1, func() {
			began <- struct{}{}
			<-release
			ended.Add(1)
		})
	}
	other := make(chan struct{})
	c.add(2, func() { close(other) })
	select {
	case <-other:
	case <-time.After(patience):
		t.Error("a user's files are not closed while another's hang")
	}
	for range closersPerUser {
		select {
		case <-began:
		case <-time.After(patience):
			t.Fatal("too few closes have begun")
		}
	}
	c.mu.Lock()
	if q := c.users[1]; q.closers != closersPerUser || len(q.waiting) != hanging-closersPerUser {
		t.Errorf("%d closers, %d waiting", q.closers, len(q.waiting))
	}
	c.mu.Unlock()
	close(release)
	c.wait()
	if n := ended.Load(); n != hanging || len(c.users) != 0 {
		t.Errorf("%d of %d closed; %d queues left", n, hanging, len(c.users))
	}
}
