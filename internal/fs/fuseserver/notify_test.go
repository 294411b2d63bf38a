package fuseserver

import (
	"testing"
	"time"
)

// Notifications do not wait for another directory, whose lock may be held for long.
func TestNotificationsDoNotWaitForOtherDirectories(t *testing.T) {
	release := make(chan struct{})
	var sent []string // of directory 2, which has one worker
	n := newNotifier(func(parent uint64, name string) {
		if parent == 1 {
			<-release
			return
		}
		sent = append(sent, name)
	})
	stuck := n.entry(1, "a")
	for _, name := range []string{"x", "y"} {
		select {
		case <-n.entry(2, name):
		case <-time.After(5 * time.Second):
			t.Fatal("a notification waits for another directory")
		}
	}
	if len(sent) != 2 || sent[0] != "x" || sent[1] != "y" {
		t.Errorf("sent %q", sent)
	}
	dropped := n.entry(1, "b")
	n.stop()
	close(release)
	<-stuck
	<-dropped
	n.wait()
	<-n.entry(3, "late")
}

// Messages that may be lost do not pile up for a directory whose lock is held.
func TestOffersDoNotPileUp(t *testing.T) {
	held := make(chan struct{})
	n := newNotifier(func(uint64, string) { <-held })
	for range 3 * mostOffered {
		n.offer(7, "name")
	}
	n.mu.Lock()
	if most := len(n.queues[7]); most > mostOffered {
		t.Errorf("%d messages wait, want %d", most, mostOffered)
	}
	n.mu.Unlock()
	close(held)
	n.stop()
	n.wait()
}
