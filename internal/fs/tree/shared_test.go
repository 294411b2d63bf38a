package tree

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What one handle has written may be made visible by the close of another one: its own close returns only after that.
func TestPublishWaitsForAnother(t *testing.T) {
	var during func()
	tr, _ := newTree(t, Options{Shared: Sharing{Uncached: true, Forget: func(int) {
		if during != nil {
			during()
		}
	}}})
	e, a := create(t, tr, RootID, "f", root, 0o644)
	defer tr.Forget(e.ID, 1)
	defer a.Close()
	b := must(tr.Open(e.ID, root, unix.O_WRONLY))
	defer b.Close()
	if _, err := a.Write([]byte("odd"), 0, false, 0, nil); err != nil {
		t.Fatal(err)
	}
	published, early := make(chan error, 1), false
	during = func() {
		during = nil
		go func() { published <- a.Publish() }()
		select {
		case err := <-published:
			early = true
			published <- err
		case <-time.After(100 * time.Millisecond): // it waits, or has not begun
		}
	}
	if err := b.Publish(); err != nil {
		t.Error(err)
	}
	if err := <-published; err != nil {
		t.Error(err)
	}
	if early {
		t.Error("one close has returned while another one was still at work on what it had written")
	}
}
