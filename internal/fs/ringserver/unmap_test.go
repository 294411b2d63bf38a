package ringserver

import "testing"

// A worker leaves the end of a large mapping to another goroutine, and Close waits for it.
func TestWorkersUnmapNothingLarge(t *testing.T) {
	w := idle(t)
	const sizeBytes = 1 << 40
	_, id, name, err := object(t, w.s, sizeBytes, "")
	if err != nil {
		t.Fatal(err)
	}
	v := w.s.table.buffer(id).acquire()
	if err := w.s.Unregister(me, name); err != nil {
		t.Fatal(err)
	}
	u := &w.s.unmaps
	u.mu.Lock() // so that it cannot have ended yet
	released := make(chan struct{})
	go func() {
		defer close(released)
		v.releaseBy(u)
	}()
	if used := w.s.mappedBytes.Used(me.UID); used < sizeBytes {
		t.Errorf("%d bytes are counted as mapped, want those of the mapping", used)
	}
	u.mu.Unlock()
	<-released
	u.close()
	if used := w.s.mappedBytes.Used(me.UID); used != 0 {
		t.Errorf("%d bytes are counted as mapped after the end", used)
	}
}
