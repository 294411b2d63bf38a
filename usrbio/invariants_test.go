//go:build invariants

package usrbio

import "testing"

// Each state change that must not happen panics.
func TestInvariants(t *testing.T) {
	b := fixture(t, RingOptions{Entries: 4})
	b.p.stalled.Store(true)
	b.prepare(t, 0, 16, 0)
	for name, broken := range map[string]func(){
		"slot taken twice":            func() { b.r.slots.take(0, issued{ticket: 9, length: 16}) },
		"ticket used again":           func() { s := newSlots(1); s.take(0, issued{length: 16}) },
		"request of no bytes":         func() { s := newSlots(1); s.take(0, issued{ticket: 1}) },
		"free slot abandoned":         func() { b.r.slots.abandon(3) },
		"iov freed more than held":    func() { new(Iov).hold(-1) },
		"publish without its lock":    func() { b.r.publish(1, nil) },
		"reap out of turn":            func() { b.r.reap(nil) },
		"ring added twice to a mount": func() { adopt(b.m, &b.m.rings, b.r) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			broken()
		})
	}
	// publish was called without the lock, and its check took it.
	b.r.prep.Unlock()
	if b.v.inFlight.Load() != 1 {
		t.Errorf("%d requests in flight on the iov, want 1", b.v.inFlight.Load())
	}
}
