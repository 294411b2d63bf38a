package shm

import (
	"io"
	"testing"
)

// System calls and the mapping see the same bytes.
func TestObjectIO(t *testing.T) {
	m := object(t, 8192)
	defer m.Unmap()
	m.StoreInt32(4, 77)
	got := make([]byte, 8)
	if n, err := m.ReadAt(got, 0); n != 8 || err != nil || got[4] != 77 {
		t.Errorf("read %d, %v: %v", n, err, got)
	}
	if n, err := m.WriteAt([]byte{1, 2, 3, 4}, 100); n != 4 || err != nil || m.LoadInt32(100) != 0x04030201 {
		t.Errorf("wrote %d, %v: %#x", n, err, m.LoadInt32(100))
	}
	if n, err := m.ReadAt(make([]byte, 100), 8100); n != 92 || err != io.ErrUnexpectedEOF {
		t.Errorf("read %d beyond the end, %v", n, err)
	}
}

func TestInitSem(t *testing.T) {
	m := object(t, 4096)
	defer m.Unmap()
	for off := int64(64); off < 96; off += 4 {
		m.StoreInt32(off, -1)
	}
	if err := m.InitSem(64); err != nil {
		t.Fatal(err)
	}
	want := make([]int32, 8)
	m.Sem(128).Init()
	for i := range want {
		want[i] = m.LoadInt32(128 + int64(4*i))
		if i >= 3 {
			want[i] = -1 // not initialised
		}
		if got := m.LoadInt32(64 + int64(4*i)); got != want[i] {
			t.Errorf("word %d is %#x, want %#x", i, got, want[i])
		}
	}
	s := m.Sem(64)
	if s.TakeAll() {
		t.Error("a new semaphore has a value")
	}
	s.Post()
	if !s.TakeAll() {
		t.Error("a post is lost")
	}
}
