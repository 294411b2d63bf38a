package index

import "testing"

// A space may be discarded, and be initialised again, while somebody who goes through all spaces waits for another one's lock: it
// then comes to the old one, which is not to take the new one with it.
func TestDiscardedTwice(t *testing.T) {
	x, _ := lead(t, nil, Options{}, nil)
	mustInitialize(t, x, 1)
	old := x.find(modelSpace)
	if err := x.Forget(ctx, modelSpace, 0); err != nil {
		t.Fatal(err)
	}
	discard := func() {
		old.mu.Lock()
		defer old.mu.Unlock()
		old.closedUntil = 0 // it is over
		old.discard()
	}
	discard()
	mustInitialize(t, x, 1)
	mustSave(t, x, "K")
	frames := x.frames.Load()
	discard()
	if found, err := x.Exists(ctx, modelSpace, []string{"K"}); err != nil || !found[0] {
		t.Error("a key of the new space has gone", err)
	}
	if got := x.frames.Load(); got != frames {
		t.Errorf("%d bytes are counted for it, want %d", got, frames)
	}
}
