package tier

import (
	"runtime"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A buffer that a storage may still use is not given out, and counts until nobody uses it.
func TestLostMemory(t *testing.T) {
	told := 0
	m := newMemory(4096, 2, func() { told++ })
	used := make(chan []byte, 2)
	for range 2 {
		buf, _ := m.try()
		m.put(buf, kv.Abandoned("a test"))
		used <- buf // as the goroutine does that is in a call
	}
	runtime.GC()
	if buf, _ := m.try(); buf != nil || told != 1 {
		t.Fatalf("a buffer in use is given out, or nobody was told (%d)", told)
	}
	if _, err := m.take(t.Context(), func() {}); err != errNoMemory {
		t.Error(err)
	}
	(<-used)[0]++
	for end := time.Now().Add(time.Minute); ; runtime.GC() {
		buf, returned := m.try()
		if buf != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no buffer comes back")
		}
		select {
		case <-returned:
		case <-time.After(10 * time.Millisecond):
		}
	}
	if buf, _ := m.try(); buf != nil {
		t.Error("the other buffer is given out while it is used")
	}
	(<-used)[0]++
}
